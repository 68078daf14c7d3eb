"""Eager calls that compute with operands where they lie: which do, and that nothing else changes."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.backends.cuda.engine import ArrayNode, CopyNode, MatrixNode
from magmadnn.backends.cuda.nodes.stand_ins import stand_in
from magmadnn.compiler.cuda.library.small import group
from magmadnn.errors import NumericError
from magmadnn.memory.pool import Pool
from magmadnn.runtime.cuda.layout import Layout
from magmadnn.runtime.cuda.running.runner import CudaRunner
from magmadnn.tensor.eager import device_layout, programs
from magmadnn.tensor.eager.known import Known
from magmadnn.tensor.eager.programs import Programs, Traced
from tests.runtime.cuda.devices import GPU, on
from tests.runtime.cuda.emulator import EmulatedReplay, Emulator, emulated_device, needs_compiler
from tests.runtime.cuda.test_eager_calls import (
    CALLS,
    PAIRED,
    RNG,
    WORD,
    counted,
    few_kernels,
    kept,
    listed,
    square,
    there,
)  # fmt: skip

__all__ = ["few_kernels", "kept"]  # fixtures
L, F = md.linalg, md.fft
EVERY: dict[str, Callable[[Any], Any]] = CALLS | PAIRED


@pytest.fixture
def device() -> Iterator[Emulator]:
    if needs_compiler.args[0]:
        pytest.skip("there is no g++")
    with emulated_device() as made:
        yield made


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes of copies on the device to and from the memory of programs."""
    found: list[int] = []
    original = Layout.copy_within

    def copy(self: Layout, to: int, source: int, nbytes: int) -> None:
        found.append(nbytes)
        original(self, to, source, nbytes)

    monkeypatch.setattr(Layout, "copy_within", copy)
    return found


def by_graphs(
    monkeypatch: pytest.MonkeyPatch, call: Callable[[Any], Any], a: np.ndarray
) -> list[Any]:
    """The results of the compiled program, whose graph has operands in memory of its own."""
    with monkeypatch.context() as patch:
        patch.setattr(CudaRunner, "direct", lambda self, operands, finite: None)
        patch.setattr(Programs, "again", lambda self, known: None)
        programs.PROGRAMS._programs.clear()
        found = [np.array(x.read()) for x in listed(call(there(a)))]
    programs.PROGRAMS._programs.clear()
    return found


@pytest.mark.parametrize("name", EVERY)
def test_operands_are_not_copied_and_bits_are_those_of_the_program(
    name: str, device: Emulator, copies: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    a = square(5, 5)
    monkeypatch.setattr(group, "LARGEST", 0)
    wanted = by_graphs(monkeypatch, EVERY[name], a)
    operand = there(a)
    device.graphs.clear()
    device.replays.clear()
    copies.clear()
    for _ in range(3):
        found = listed(EVERY[name](operand))
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(one.read(), other)
    assert not device.graphs and device.replays
    assert sum(replay.launches for replay in device.replays) >= 3
    inside = [
        n for m in device.replays for n in m.nodes if isinstance(n, CopyNode) and n.nbytes > WORD
    ]
    assert not inside and not copies, name
    np.testing.assert_array_equal(operand.read(), a)


@pytest.mark.parametrize("device", [pytest.param("gpu", marks=GPU)])
def test_bits_on_a_gpu(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What libraries do there does not depend on who calls them."""
    a = square(80, 80)  # too large for kernels of our own
    with on(device):
        for name, call in EVERY.items():
            wanted, operand = by_graphs(monkeypatch, call, a), there(a)
            for _ in range(2):
                for one, other in zip(listed(call(operand)), wanted, strict=True):
                    np.testing.assert_array_equal(one.read(), other, name)
            np.testing.assert_array_equal(operand.read(), a)


def test_calls_wait_only_where_something_may_be_wrong(device: Emulator, kept: Programs) -> None:
    a, z = there(square(80, 80)), there(square(8, 8) + 0j)
    for call, operand, waits in (
        (L.inv, a, True), (L.svdvals, a, True), (L.norm, a, False), (F.fft, z, False),
        (lambda a: md.ops.matmul(a, a), a, False),
    ):  # fmt: skip
        call(operand)
        device.wait()
        found = call(operand)
        assert bool(device.queue) != waits
        assert found.size


@pytest.mark.parametrize("name", ["solve", "cholesky", "svd", "qr", "fft", "lu_factor", "matmul"])
def test_a_call_like_one_before_is_known_at_once(
    name: str, device: Emulator, kept: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = (lambda a: L.solve(a, a)) if name == "solve" else EVERY[name]
    call(there(square(6, 6)))
    a = square(6, 6)
    operand, wanted = there(a), listed(call(md.asarray(a)))

    def refuse(*arguments: Any, **named: Any) -> None:
        raise AssertionError("it is looked up in full")

    monkeypatch.setattr(Programs, "call", refuse)
    for one, other in zip(listed(call(operand)), wanted, strict=True):
        if name != "svd" and name != "qr":
            np.testing.assert_allclose(one.read(), other.read(), atol=1e-12)
        assert (one.kind, one.shape, one.dtype) == (md.DEVICE, other.shape, other.dtype)
    for other in (a.astype("float32"), a.astype("int64"), square(7, 7)):
        with pytest.raises(AssertionError, match="in full"):
            call(there(other))


def test_arguments_by_name_and_in_tuples_are_known_too(
    device: Emulator, kept: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = square(6, 6), RNG.normal(size=(6, 2))
    left, right = there(a), there(b)
    calls = (
        lambda: L.cho_solve((there(np.linalg.cholesky(a @ a.T)), True), right),
        lambda: L.pinv(left, rcond=1e-9),
        lambda: L.qr(left, mode="complete"),
        lambda: F.fft(left, n=5, axis=0, norm="ortho"),
        lambda: L.norm(left, 1, axis=(0, 1)),
    )
    firsts = [listed(call()) for call in calls]
    L.solve(b=right, a=left)  # operands by name are looked up in full
    monkeypatch.setattr(Programs, "call", lambda self, *a, **b: pytest.fail("looked up in full"))
    for call, first in zip(calls, firsts, strict=True):
        for one, other in zip(listed(call()), first, strict=True):
            np.testing.assert_array_equal(one.read(), other.read())


def test_operands_by_name_are_not_mistaken(device: Emulator, kept: Programs) -> None:
    a, b = square(4, 4), square(4, 4)
    for one, other in ((a, b), (b, a)):
        for _ in range(2):
            found = L.solve(b=there(other), a=there(one)).read()
            np.testing.assert_allclose(found, np.linalg.solve(one, other), atol=1e-13)


def test_what_does_not_lie_as_before_is_looked_up_in_full(
    device: Emulator, kept: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that begin 64 bytes behind others have the same shape and strides, but are not aligned."""
    values = square(9, 8)
    rows, seen = there(values), list[int]()
    for _ in range(3):
        F.rfft(rows[4:8])
    known = kept.again

    def noted(call: Known) -> Any:
        seen.append(len(call.places))
        return known(call)

    monkeypatch.setattr(kept, "again", noted)
    for first in (1, 4):
        found = F.rfft(rows[first : first + 4]).read()
        np.testing.assert_allclose(found, np.fft.rfft(values[first : first + 4]), atol=1e-13)
    assert seen == [1]  # of the second
    shape = (4, 8), (64, 8), np.dtype("float64")
    assert device_layout._layout(*shape, 0) is not device_layout._layout(*shape, 1)


def test_results_are_ordered_with_calls_and_reads(device: Emulator, kept: Programs) -> None:
    """What was computed is used at once, also where its operand's memory is given back meanwhile."""
    a = square(6, 6)
    wanted = np.linalg.inv(a) @ a.T
    for _ in range(4):
        product = md.ops.matmul(L.inv(there(a)), there(a).T)
        np.testing.assert_allclose(np.asarray(product), wanted, atol=1e-12)
        chained = md.ops.matmul(md.ops.matmul(product, product), product)
        del product
        np.testing.assert_allclose(np.asarray(chained), wanted @ wanted @ wanted, atol=1e-9)


def test_results_are_new_memory_each_time(device: Emulator, kept: Programs) -> None:
    a, b = square(5, 5), square(5, 5)
    first, second = L.cholesky(there(a @ a.T)), L.cholesky(there(b @ b.T))
    third = L.cholesky(there(a @ a.T))
    np.testing.assert_allclose(second.read(), np.linalg.cholesky(b @ b.T), atol=1e-12)
    np.testing.assert_array_equal(first.read(), third.read())
    places = {x.memory.device_pointer() for x in (first, second, third)}
    assert len(places) == 3


def test_a_fault_is_of_one_call(
    device: Emulator, kept: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host looks at what is wrong, and at nothing else."""
    a = square(5, 5)
    L.inv(there(a))
    for values in (a, np.zeros((5, 5)), a, np.full((5, 5), np.nan), a):
        if (values == a).all():
            operand = there(values)
            with monkeypatch.context() as patch:
                brought = counted(patch)
                found = L.inv(operand)
            assert not brought
            np.testing.assert_allclose(found.read(), np.linalg.inv(a), atol=1e-13)
        else:
            with pytest.raises(NumericError, match=r"inv: a"):
                L.inv(there(values))


MIXED = {
    "a part of its rows": (lambda t: t[1:6, 1:6], True),
    "every second row": (lambda t: t[::2, :4], True),
    "an odd address": (lambda t: t.reshape(-1)[1:26].reshape(5, 5), True),
    "integers": (lambda t: t[:5, :5].astype("int64"), True),
    "backwards": (lambda t: t[4::-1, :5], False),
}


@pytest.mark.parametrize("name", MIXED)
def test_others_are_computed_as_before(
    name: str, device: Emulator, kept: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    view, computes = MIXED[name]
    values = square(8, 8)
    operand, wanted = view(there(values)), np.linalg.pinv(view(md.asarray(values)).read())
    monkeypatch.setattr(Programs, "again", lambda self, known: None)
    for _ in range(2):
        np.testing.assert_allclose(L.pinv(operand).read(), wanted, atol=1e-12)
    assert bool(device.replays) == computes
    np.testing.assert_array_equal(operand.read(), view(md.asarray(values)).read())


def test_a_turned_matrix_is_read_where_it_lies(device: Emulator, copies: list[int]) -> None:
    a = square(5, 5)
    for _ in range(2):
        for operand, values in ((there(a), a), (there(a).T, a.T)):
            np.testing.assert_allclose(L.inv(operand).read(), np.linalg.inv(values), atol=1e-13)
    assert not copies


def test_rows_of_a_larger_array_are_read_where_they_lie(
    device: Emulator, kept: Programs, copies: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At multiples of 256 bytes they are known at once; parts of rows never are."""
    values = np.concatenate([square(32, 32) for _ in range(3)])
    rows = there(values)
    L.inv(rows[:32])
    L.inv(rows[:5, :5])
    looked, original = list[int](), Programs.call

    def call(self: Programs, *arguments: Any, **named: Any) -> Any:
        looked.append(1)
        return original(self, *arguments, **named)

    monkeypatch.setattr(Programs, "call", call)
    for first in (0, 32, 64):
        found = L.inv(rows[first : first + 32]).read()
        np.testing.assert_allclose(found, np.linalg.inv(values[first : first + 32]), atol=1e-12)
    assert not looked
    L.inv(rows[:5, :5])
    assert len(looked) == 1 and not copies


@needs_compiler
def test_results_that_are_one_value_have_memory_of_their_own(kept: Programs) -> None:
    a = square(6, 6)

    def trace(nodes: list[Any]) -> Traced:
        y = md.ops.matmul(nodes[0], nodes[0])
        return Traced([y, y, nodes[0]], None)

    with emulated_device():
        operand = there(a)
        found = kept.call("twice", [operand], (md.DEVICE, 0), trace)
        assert found is not None
        places = {memory.device_pointer() for memory, _, _ in found.parts}
        assert len(places) == 3 and operand.memory.device_pointer() not in places
        for (memory, _, _), wanted in zip(found.parts, (a @ a, a @ a, a), strict=True):
            values = md.memory.MemoryManager(36, "float64", "HOST")
            values.copy_from(memory)
            np.testing.assert_allclose(values.host().reshape(6, 6), wanted, atol=1e-12)


@pytest.mark.parametrize("call", [L.cholesky, L.inv, lambda a: L.solve(a, a), L.eigvalsh])
def test_tables_of_matrices_have_addresses_that_stay(
    call: Callable[[Any], Any], device: Emulator, kept: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a function of many matrices is told in the device's memory is memory of the program."""
    monkeypatch.setattr(group, "LARGEST", 0)
    a = square(3, 40, 40)
    a = a @ a.swapaxes(-1, -2)
    wanted = call(md.asarray(a)).read()
    for _ in range(3):
        found = call(there(a)).read()
        np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-9 * np.abs(wanted).max())
    nodes = [node for replay in device.replays for node in replay.nodes]
    calls = [node for node in nodes if isinstance(node, MatrixNode)]
    assert calls and all(max(node.addresses) < stand_in(0) for node in calls)


def test_complex_matrices_are_read_where_they_lie(device: Emulator, copies: list[int]) -> None:
    z = square(5, 5) * (1 + 0.2j)
    for _ in range(2):
        np.testing.assert_allclose(L.inv(there(z)).read(), np.linalg.inv(z), atol=1e-13)
    assert not copies
    assert any(isinstance(node, ArrayNode) for m in device.replays for node in m.nodes)


def test_a_result_that_is_an_operand_is_a_copy(device: Emulator, kept: Programs) -> None:
    a = square(4, 4)
    operand = there(a)
    for _ in range(2):
        found = L.matrix_power(operand, 1)
        found[...] = 0
        np.testing.assert_array_equal(operand.read(), a)


@needs_compiler
def test_memory_is_less_than_with_copies_and_is_given_back(
    kept: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = square(200, 200)
    with emulated_device():
        operand = there(a)
        L.cholesky(there(a @ a.T))
        lean = kept.nbytes
        kept._programs.clear()
        kept._shorts.clear()
        with monkeypatch.context() as patch:
            patch.setattr(CudaRunner, "direct", lambda self, operands, finite: None)
            L.cholesky(there(a @ a.T))
            assert kept.nbytes - lean > 1.9 * a.nbytes  # operand and result
        kept._programs.clear()
        kept._shorts.clear()
        monkeypatch.setattr(programs, "most_bytes", lambda device: 0)
        for _ in range(3):
            np.testing.assert_allclose(L.inv(operand).read(), np.linalg.inv(a), atol=1e-10)
            assert not kept.nbytes


def test_python_does_little_in_a_call(
    device: Emulator, kept: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Functions of Python that one call enters, without what stands for the GPU: some 15 us."""
    a, b = there(square(80, 80)), there(RNG.normal(size=(80, 2)))
    calls = (lambda: L.solve(a, b), lambda: L.inv(a), lambda: md.ops.matmul(a, b), lambda: F.fft(a))
    for call in calls:
        call()
        call()
    device.wait()
    monkeypatch.setattr(EmulatedReplay, "launch", lambda self, places: None)
    for call in calls:
        entered: list[str] = []

        def note(frame: Any, event: str, argument: Any, entered: list[str] = entered) -> None:
            if event == "call":
                entered.append(frame.f_code.co_qualname)

        gc.disable()
        sys.setprofile(note)
        try:
            call()
        finally:
            sys.setprofile(None)
            gc.enable()
        assert len(entered) <= 80, entered  # 300 where it is looked up in full


def test_memory_of_results_is_taken_again_only_where_nobody_has_it(
    device: Emulator, kept: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = square(9, 9), square(9, 9)
    x, y = there(a), there(b)

    def place(t: md.Tensor) -> int:
        return t.memory.device_pointer()

    md.ops.matmul(x, x)
    first = md.ops.matmul(x, y)
    other = md.ops.matmul(y, x)
    at, version = place(other), other.memory.version
    assert place(first) != at
    del first, other
    with monkeypatch.context() as without:
        without.setattr(Pool, "lend", lambda *a: pytest.fail("memory was lent"))
        again = md.ops.matmul(x, y)
    assert place(again) == at and again.memory.version != version
    part = again[1:, ::2]  # what has a part of it has it
    del again
    third = md.ops.matmul(y, y)
    assert place(third) != at
    np.testing.assert_allclose(part.read(), (a @ b)[1:, ::2], atol=1e-12)
    lent = third.__cuda_array_interface__["data"][0]  # whoever got this may write there for ever
    del third, part
    fourth = md.ops.matmul(x, y)
    assert place(fourth) != lent
    watch, gone = weakref.ref(fourth.memory), place(fourth)
    del fourth
    assert (watch() is None) or place(md.ops.matmul(x, y)) != gone
    kept._programs.clear()
    kept._shorts.clear()
    monkeypatch.setattr(programs, "MOST_KEPT", 0)
    md.ops.matmul(x, x)
    dead = weakref.ref(md.ops.matmul(x, x).memory)
    assert dead() is None
