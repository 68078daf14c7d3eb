"""Eager calls on Tensors in a device's memory: computed there, by programs that are kept."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.backends.cuda import device_engine
from magmadnn.backends.cuda.simulated import simulated_devices
from magmadnn.errors import MagmaDNNError, NumericError
from magmadnn.memory import Kind
from magmadnn.runtime.cuda.schedule import small
from magmadnn.tensor.eager import programs
from magmadnn.tensor.eager.operands import given, view_of
from magmadnn.tensor.eager.programs import Programs
from tests.linalg.test_matrix_functions import FUNCTIONS, listed, matrices
from tests.runtime.cuda.devices import DEVICES, on
from tests.runtime.cuda.emulator import emulated_device, needs_compiler
from tests.runtime.cuda.test_foreign import Foreign, counted

RNG = np.random.default_rng(5)
WORD = 8  # bytes: whether a library found something wrong
L, F = md.linalg, md.fft
CALLS = {
    "solve": lambda a: L.solve(a, a[..., :2]),
    "solve vector": lambda a: L.solve(a, np.arange(1.0, 1 + a.shape[-1])),
    "inv": L.inv,
    "det": L.det,
    "slogdet": L.slogdet,
    "svdvals": L.svdvals,
    "eigvalsh": L.eigvalsh,
    "cholesky": lambda a: L.cholesky(a @ a.swapaxes(-1, -2)),
    "solve_triangular": lambda a: L.solve_triangular(a, a, lower=True),
    "cho_solve": lambda a: L.cho_solve((a, True), a),
    "lstsq": lambda a: L.lstsq(a[..., :3], a[..., 3:]),
    "pinv": L.pinv,
    "norm": L.norm,
    "nuclear norm": lambda a: L.norm(a, "nuc", axis=(-2, -1)),
    "cond": L.cond,
    "matrix_rank": L.matrix_rank,
    "lu": L.lu,
    "lu_factor": L.lu_factor,
    "lu_solve": lambda a: L.lu_solve(L.lu_factor(a), a[..., :2], trans=1),
    "expm": L.expm,
    "matrix_power": lambda a: L.matrix_power(a, -3),
    "kron": lambda a: L.kron(a, a[..., :2, :3]),
    "matmul": lambda a: md.ops.matmul(a, a.swapaxes(-1, -2)),
    "fft": F.fft,
    "ifft": lambda a: F.ifft(F.fft(a, 7), axis=-2, norm="ortho"),
    "fft2": lambda a: F.fft2(a, s=(3, 8)),
    "rfft": F.rfft,
    "irfftn": lambda a: F.irfftn(F.rfftn(a)),
    "convolve": lambda a: F.convolve(a, a[..., :3], mode="same"),
    "fftshift": F.fftshift,
}
PAIRED = {
    "svd": lambda a: L.svd(a, full_matrices=False),
    "eigh": L.eigh,
    "qr": lambda a: L.qr(a, mode="complete"),
}


@pytest.fixture(autouse=True)
def few_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small, "MOST_OPERATIONS", 0)


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Iterator[Programs]:
    """Programs of this test alone."""
    import magmadnn.tensor.on_gpu
    import magmadnn.tensor.tensor

    made = Programs()
    for module in (magmadnn.tensor.on_gpu, magmadnn.tensor.tensor):
        monkeypatch.setattr(module, "PROGRAMS", made)
    yield made


def there(values: np.ndarray, kind: str = "DEVICE") -> md.Tensor:
    """A Tensor whose values lie on the device, and nowhere else."""
    made = md.Tensor.holding(values, kind)
    if made.kind is Kind.MANAGED:
        made.memory.device_pointer(write=True)
    return made


def square(*shape: int) -> np.ndarray:
    """Matrices that are easy to invert, whose rows have different sizes."""
    return RNG.normal(size=shape) + np.eye(*shape[-2:]) * np.arange(4.0, 4 + shape[-1])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shape", [pytest.param((5, 5), marks=pytest.mark.long), (2, 5, 5)])
def test_values_are_those_of_the_host_and_nothing_goes_through_it(
    shape: tuple[int, ...], device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To 1000 eps, by a word of faults alone; types, dtypes and shapes are the same."""
    a = square(*shape)
    with on(device):
        for name, call in (CALLS | PAIRED).items():
            wanted, operand = call(md.asarray(a)), there(a)
            call(operand)  # constants of programs come to the device
            with monkeypatch.context() as patch:
                copies = counted(patch)
                found = call(operand)
            exchanges = a.size // a.shape[-1] * 8
            most = {"solve vector": a.shape[-1] * 8, "lu_solve": exchanges}
            assert max(copies, default=0) <= most.get(name, WORD), name
            assert type(found) is type(wanted), name
            for one, other in zip(listed(found), listed(wanted), strict=True):
                assert one.kind is md.DEVICE and one.is_packed, name
                assert (one.shape, one.dtype) == (other.shape, other.dtype), name
                if name in CALLS:
                    size = np.abs(other.read()).max()
                    away = np.abs(one.read() - other.read()).max()
                    assert away <= 1000 * 2.3e-16 * max(size, 1), name
        managed = there(a, "MANAGED")
        with monkeypatch.context() as patch:
            copies = counted(patch)
            L.inv(managed)
        assert max(copies, default=0) <= WORD
        u, s, v = (x.read() for x in PAIRED["svd"](operand))
        q, r = (x.read() for x in PAIRED["qr"](operand))
        w, c = (x.read() for x in PAIRED["eigh"](operand))
    whole = np.tril(a) + np.swapaxes(np.tril(a, -1), -1, -2)
    for product, value in (
        (u * s[..., None, :] @ v, a), (q @ r, a), (c * w[..., None, :], whole @ c),
    ):  # fmt: skip
        np.testing.assert_allclose(product, value, atol=1e-12)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ["float32", "float16", "int64", "complex64"])
def test_dtypes_are_those_of_the_host(dtype: str, device: str) -> None:
    a = square(4, 4).astype(dtype)
    with on(device):
        for name in (
            "solve", "svdvals", "eigh", "norm", "matmul", "fft", "matrix_rank", "lu", "lu_factor",
            "lu_solve", "expm",
        ):  # fmt: skip
            call = (CALLS | PAIRED)[name]
            for one, other in zip(listed(call(there(a))), listed(call(md.asarray(a))), strict=True):
                assert (one.dtype, one.shape) == (other.dtype, other.shape), name
                assert one.kind is md.DEVICE, name
                if name in CALLS:
                    left, right = (x.read().astype("complex128") for x in (one, other))
                    eps = 1e-3 if dtype == "float16" else 1.2e-7
                    assert np.abs(left - right).max() <= 100 * eps * np.abs(right).max(), name


@needs_compiler
def test_results_are_where_the_first_tensor_is(kept: Programs) -> None:
    """Other operands are taken from where they lie; memory that is valid on the host alone is the host's."""
    a, b = square(5, 5), RNG.normal(size=(5, 2))
    right = np.linalg.solve(a, b)
    with emulated_device(devices=2):
        for first, second in (
            (there(a), b),
            (there(a), b.tolist()),
            (there(a), md.asarray(b)),
            (there(a), md.Tensor.holding(b, "HOST")),
            (there(a, "MANAGED"), there(b)),
            (there(a, "CUDA_MANAGED"), there(b, "MANAGED")),
            (a, there(b)),
        ):
            before = len(device_engine(0).graphs)
            found = L.solve(first, second)
            holder = first if isinstance(first, md.Tensor) else second
            assert found.kind is holder.kind
            if found.kind is Kind.MANAGED:
                assert found.memory.device_valid and not found.memory.host_valid
                assert not first.memory.host_valid
            assert len(kept) or len(device_engine(0).graphs) > before
            np.testing.assert_allclose(found.read(), right, atol=1e-14)
        made = len(kept)
        on_host = L.solve(md.asarray(a), there(b))
        assert on_host.kind is Kind.MANAGED and not on_host.memory.device_valid
        assert given(md.Tensor.holding(b, "DEVICE", 1), 0) is None
        elsewhere = L.solve(there(a), md.Tensor.holding(b, "DEVICE", 1))
        assert elsewhere.kind is md.DEVICE and elsewhere.device == 0
        second = L.solve(md.Tensor.holding(a, "DEVICE", 1), md.Tensor.holding(b, "DEVICE", 1))
        assert second.device == 1 and len(kept) == made + 1
        for x in (on_host, elsewhere, second):
            np.testing.assert_allclose(x.read(), right, atol=1e-14)


@needs_compiler
def test_arrays_of_other_libraries_are_taken_where_they_lie(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    a = square(7, 7)
    with on("emulated"):
        foreign = Foreign(a)
        L.inv(foreign)
        copies = counted(monkeypatch)
        found, values = L.inv(foreign), F.fft(Foreign(a))
        assert (
            max(copies) <= a.nbytes and sum(copies) <= a.nbytes + 2 * WORD
        )  # the second array itself
        assert found.kind is md.DEVICE and values.kind is md.DEVICE
        np.testing.assert_allclose(found.read() @ a, np.eye(7), atol=1e-13)
        np.testing.assert_allclose(values.read(), np.fft.fft(a), atol=1e-12)


VIEWS = {
    "transpose": lambda t: t[0].T,
    "columns": lambda t: t[1, :, 2:7],
    "rows and columns": lambda t: t[2, 1:6, 1:6],
    "steps": lambda t: t[0, 1:9:2, ::2],
    "steps that do not divide": lambda t: t[2, ::3, 1::3],
    "a column of each": lambda t: t[:, :, 4].swapaxes(0, 1),
    "turned stack": lambda t: t.transpose(2, 0, 1)[1:6, :, 3:6],
    "with an axis": lambda t: t[None, 1, :, 1:4],
    "one element": lambda t: t[1:2, 3:4, 5:6],
}


@needs_compiler
@pytest.mark.parametrize("name", VIEWS)
def test_views_are_copied_on_the_device(
    name: str, kept: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = RNG.normal(size=(3, 9, 8))
    with on("emulated"):
        view = VIEWS[name]
        operand, wanted = view(there(values)), view(values)
        L.pinv(operand)
        copies = counted(monkeypatch)
        found = L.pinv(operand)
        assert max(copies, default=0) <= WORD and len(kept) == 1
        np.testing.assert_allclose(found.read(), np.linalg.pinv(wanted), atol=1e-12)


def windows(line: np.ndarray) -> Iterator[np.ndarray]:
    """Matrices of parts of a line, whole and with steps, turned and not; none without elements."""
    for begin, m, n in ((0, 5, 7), (5, 6, 7), (3, 4, 11), (11, 3, 12), (1, 2, 23)):
        matrix = line[begin : begin + m * n].reshape(m, n)
        for first, step, columns in ((0, 1, 1), (1, 1, 2), (0, 2, 1), (2, 2, 3)):
            for cut in range(3):
                found = matrix[first::step, cut::columns], matrix[:, cut::columns].T[None, first:]
                yield from (view for view in found if view.size)


def test_blocks_lie_within_the_memory_and_views_within_them() -> None:
    line = np.arange(47)
    for view in windows(line):
        steps = tuple(step // line.itemsize for step in view.strides)
        made = view_of(view.shape, steps, int(view.flat[0]), line.size)
        assert made is not None
        end = made.begin + int(np.prod(made.block))
        assert made.begin >= 0 and end <= line.size
        block = line[made.begin : end].reshape(made.block)
        taken = block if made.index is None else block[made.index]
        taken = taken if made.order is None else taken.transpose(made.order)
        np.testing.assert_array_equal(taken.reshape(view.shape), view)
    assert view_of((4, 3), (7, 1), 1, 27) is None  # whole rows have no room
    assert view_of((4, 3), (7, 1), 1, 28) is not None
    assert view_of((3, 3), (1, 1), 0, 9) is None  # windows that overlap


@needs_compiler
def test_views_that_are_no_block_go_through_the_host(kept: Programs) -> None:
    values = RNG.normal(size=(6, 8))
    with on("emulated"):
        for view in (lambda t: t[::-1], lambda t: t[:, ::-2], lambda t: t[:0]):
            found = L.pinv(view(there(values)))
            assert found.kind is md.DEVICE and not len(kept)
            np.testing.assert_allclose(found.read(), np.linalg.pinv(view(values)), atol=1e-12)


def singular() -> np.ndarray:
    a = square(3, 5, 5)
    a[1, :, 2] = a[1, :, 0] = 0
    return a


def holed() -> np.ndarray:
    a = square(3, 5, 5)
    a[2, 4, 1] = np.inf
    return a


WRONG = [
    (L.inv, singular()), (lambda a: L.solve(a, a), singular()),
    (L.inv, square(3, 4)), (L.det, square(5, 4)), (L.cholesky, -square(2, 5, 5)),
    (lambda a: L.solve(a, a[:, :3]), square(5, 5, 5)), (L.inv, square(5, 5)[0]),
    *((f, holed()) for f in (
        L.inv, L.det, L.slogdet, L.svd, L.svdvals, L.eigh, L.eigvalsh, L.qr, L.pinv, L.cond, L.matrix_rank,
        lambda a: L.solve(np.eye(5), a), lambda a: L.lstsq(a, a), lambda a: L.cho_solve((a, True), a),
        lambda a: L.cond(a, 1), lambda a: L.norm(a, 2, axis=(1, 2)), lambda a: L.matrix_power(a, -1),
        lambda a: L.eigh(np.eye(5), b=a), L.cholesky, lambda a: L.solve_triangular(a, a, lower=False),
    )),
    (L.lu, holed()), (L.lu_factor, holed()), (L.expm, holed()), (L.expm, square(5, 4)),
    (L.lu_factor, square(5, 5)[0]), (lambda a: L.lu_solve(L.lu_factor(a), a), singular()),
    (lambda a: L.lu_solve(L.lu_factor(a), a[..., :3, :]), square(5, 5)),
    (lambda a: L.lu_solve((a, np.arange(1, 6)), a), square(5, 5)),
    (lambda a: L.lu_solve(L.lu_factor(np.eye(5)), a), holed()),
    (lambda a: L.cho_solve((a, True), a), square(5, 5) * (1 - np.eye(5))),
    (lambda a: L.solve_triangular(a, a, lower=True), square(5, 5) * (1 - np.eye(5))),
    (lambda a: F.fft(a, axis=2), square(4, 4)), (lambda a: F.fft(a, norm="other"), square(4, 4)),
    (lambda a: L.norm(a, ord="other"), square(4, 4)), (lambda a: L.svd(a, full_matrices=3), square(4, 4)),
    (lambda a: a @ a[:, :3].T, square(4, 4)),
]  # fmt: skip


@needs_compiler
@pytest.mark.parametrize("number", range(len(WRONG)))
def test_errors_have_the_texts_of_the_host(number: int) -> None:
    call, values = WRONG[number]
    with on("emulated"):
        with pytest.raises(MagmaDNNError) as on_host:
            call(md.asarray(values))
        for _ in range(2):  # the second time by a program that is kept
            with pytest.raises(type(on_host.value)) as on_device:
                call(there(values))
            assert str(on_device.value) == str(on_host.value)


@needs_compiler
def test_what_is_wrong_once_is_right_with_other_values(kept: Programs) -> None:
    with on("emulated"):
        for values in (square(5, 5), np.zeros((5, 5)), square(5, 5)):
            if not values.any():
                with pytest.raises(NumericError, match="inv: a is singular: pivot 1 of 5 is 0"):
                    L.inv(there(values))
                assert L.det(there(values)).item() == 0
                continue
            np.testing.assert_allclose(
                L.inv(there(values)).read(), np.linalg.inv(values), atol=1e-14
            )
        assert len(kept) == 2


@needs_compiler
def test_results_are_new_memory_that_later_calls_leave_alone(kept: Programs) -> None:
    a, b = square(5, 5), square(5, 5)
    with on("emulated"):
        operand = there(a)
        first = L.inv(operand)
        second = L.inv(there(b))
        np.testing.assert_allclose(first.read(), np.linalg.inv(a), atol=1e-14)
        np.testing.assert_allclose(second.read(), np.linalg.inv(b), atol=1e-14)
        first[...] = 0
        one = L.matrix_power(operand, 1)
        operand[...] = 7
        np.testing.assert_array_equal(one.read(), a)
        assert len(kept) == 2


@needs_compiler
def test_programs_are_known_by_shapes_dtypes_and_attributes(kept: Programs) -> None:
    a = square(4, 4)
    with on("emulated"):
        for count, call in enumerate(
            (
                lambda: L.inv(there(a)), lambda: L.inv(there(a.astype("float32"))),
                lambda: L.inv(there(square(3, 3))), lambda: L.pinv(there(a)),
                lambda: L.pinv(there(a), 1e-3), lambda: L.pinv(there(a), rcond=1e-2),
                lambda: L.matrix_power(there(a), 1), lambda: L.inv(there(a).T),
            ), 1,
        ):  # fmt: skip
            call()
            assert len(kept) == count
            call()
            assert len(kept) == count
        L.pinv(there(a), rcond=1e-3)
        with pytest.raises(MagmaDNNError, match="n must be an integer"):
            L.matrix_power(there(a), True)  # not as 1
        L.pinv(a=there(a))
        assert len(kept) == count + 1


@needs_compiler
def test_few_programs_and_little_memory_are_kept(
    kept: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = programs.most_bytes
    monkeypatch.setattr(programs, "MOST_PROGRAMS", 3)
    with on("emulated"):
        arrays = [square(n, n) for n in (3, 4, 5, 6)]
        for a in arrays:
            L.inv(there(a))
        assert len(kept) == 3
        every = kept.nbytes
        assert 0 < every
        kept._programs.clear()
        kept._shorts.clear()
        monkeypatch.setattr(programs, "most_bytes", lambda device: every // 2)
        for _ in range(2):
            for a in arrays[1:]:
                np.testing.assert_allclose(L.inv(there(a)).read(), np.linalg.inv(a), atol=1e-14)
                assert 0 < kept.nbytes <= every // 2
        assert len(kept) == 3
        monkeypatch.setattr(programs, "SHARE", 1 << 50)
        monkeypatch.setattr(programs, "most_bytes", most)
        L.inv(there(arrays[0]))
        assert not kept.nbytes


@needs_compiler
def test_without_room_the_host_computes(kept: Programs) -> None:
    """There is some for operand and result, and none for what a program needs in between."""
    a = square(200, 200)
    with emulated_device(capacity=3 << 19):
        found = L.inv(there(a))
        assert found.kind is md.DEVICE and not kept.nbytes
        np.testing.assert_allclose(found.read(), np.linalg.inv(a), atol=1e-10)


@needs_compiler
def test_other_programs_make_room(kept: Programs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "most_bytes", lambda device: 1 << 40)
    a, b = square(200, 200), square(202, 202)
    with on("emulated"):
        L.inv(there(a))  # workspaces that all programs of a process share
        first = kept.nbytes
    with emulated_device(capacity=2 * first + (1 << 18)):  # both have no room beside operands
        L.inv(there(a))
        kept._programs.popitem(last=False)
        assert kept.nbytes == first
        found = L.inv(there(b))
        assert first < kept.nbytes < 1.1 * first
        np.testing.assert_allclose(found.read(), np.linalg.inv(b), atol=1e-10)


@needs_compiler
def test_threads_share_programs(kept: Programs) -> None:
    arrays = [square(6, 6) for _ in range(4)]
    wrong: list[Any] = []

    def run(a: np.ndarray) -> None:
        for _ in range(5):
            found = L.solve(there(a), there(a[:, :2])).read()
            if np.abs(a @ found - a[:, :2]).max() > 1e-12:
                wrong.append(found)

    with on("emulated"):
        threads = [threading.Thread(target=run, args=(a,)) for a in arrays]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong and len(kept) == 1


@needs_compiler
def test_functions_that_programs_lack_are_the_hosts(
    kept: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One copy each way, whatever the function is made of; elementwise ops as well."""
    a, z = square(5, 5), square(5, 5) * (1 + 0.1j)
    with on("emulated"):
        for call, values in (
            (L.eig, z),
            (L.eigvals, a),
            (lambda a: L.qr(a, pivoting=True), z),
            (md.ops.tanh, a),
        ):
            operand = there(values)
            with monkeypatch.context() as patch:
                copies = counted(patch)
                found = listed(call(operand))
            assert len(copies) <= 2 + len(found)
            assert all(x.kind is md.DEVICE for x in found)
            for one, other in zip(found, listed(call(md.asarray(values))), strict=True):
                np.testing.assert_array_equal(one.read(), other.read())
        assert not kept.nbytes
        integers = there(np.arange(6).reshape(2, 3)) @ there(np.arange(6).reshape(3, 2))
        assert integers.tolist() == [[10, 13], [28, 40]] and not kept.nbytes


@needs_compiler
@pytest.mark.long
def test_all_functions_of_matrices_take_tensors_on_a_device() -> None:
    with on("emulated"):
        for name, function in FUNCTIONS.items():
            a = matrices(*function.shapes[0])
            found = listed(function.call(there(a)))
            wanted = listed(function.expected(a))
            for one, other in zip(found, wanted, strict=True):
                one = one.read() if isinstance(one, md.Tensor) else one
                bound = 1000 * np.finfo("f8").eps * max(np.abs(other).max(initial=0), 1)
                assert np.abs(one - other).max(initial=0) <= bound, name


def test_memory_that_cannot_compute_leaves_it_to_the_host(kept: Programs) -> None:
    a = square(5, 5)
    with simulated_devices():
        found = L.inv(md.Tensor.holding(a, "DEVICE"))
        assert found.kind is md.DEVICE and not len(kept)
        np.testing.assert_array_equal(found.read(), L.inv(a).read())
