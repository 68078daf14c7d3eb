"""What a Tensor is and holds; views are in test_tensor_views.py."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
from typing import Any

import numpy as np
import pytest

from magmadnn import errors, memory, ops
from magmadnn.backends.cuda.simulated import SimulatedDevice
from magmadnn.graph.op import Op
from magmadnn.memory import CUDA_MANAGED, DEVICE, DTYPES, HOST, MANAGED, Kind
from magmadnn.tensor import Tensor, init
from magmadnn.tensor.conversion import asarray

KINDS = list(Kind)


def numbers(*shape: int, dtype: Any = "float32", seed: int = 0) -> np.ndarray:
    draw = np.random.default_rng(seed).integers(1, 100, shape)
    return draw.astype(memory.as_dtype(dtype))


def test_the_lines_of_the_tutorial() -> None:
    t = Tensor((32, 28, 28), init=init.uniform(-1.0, 1.0), kind=HOST, seed=1)
    assert -1 <= float(t[1, 3, 0]) < 1
    t[1, 3, 0] = 8.0
    assert t[1, 3, 0] == 8.0
    assert float(t[1, 3, 0]) == 8.0
    assert (t[-1].shape, t[:, 2:5].shape) == ((28, 28), (32, 3, 28))
    assert t.reshape(32, -1).squeeze().shape == (32, 784)
    assert np.asarray(t)[1, 3, 0] == 8.0
    assert np.from_dlpack(t)[1, 3, 0] == 8.0
    assert asarray([[1, 2], [3, 4]]).tolist() == [[1, 2], [3, 4]]
    u = t * 2
    assert isinstance(u, Tensor)
    assert (u[1, 3, 0], u.kind, u.dtype) == (16.0, HOST, np.float32)


@pytest.mark.parametrize("name", sorted(DTYPES))
def test_every_dtype(name: str) -> None:
    t = Tensor((3, 5), dtype=name)
    assert (t.dtype, t.kind, t.device, t.ndim, t.size) == (DTYPES[name], MANAGED, 0, 2, 15)
    assert t.nbytes == 15 * t.dtype.itemsize
    assert not np.asarray(t).any(), "zeros where no initialiser is given"
    t[1, 2] = 1
    assert t.item() if t.size == 1 else t[1, 2].item() == 1
    assert f"dtype={name}, kind=MANAGED)" in repr(t)


@pytest.mark.parametrize("shape", [(), 0, 7, (7,), (3, 0, 5), (2, 3), (1, 1), (np.int64(2), 3)])
def test_shapes(shape: Any) -> None:
    expected = np.zeros(shape)
    t = Tensor(shape, dtype="float64")
    assert (t.shape, t.size) == (expected.shape, expected.size)
    assert t.strides == expected.strides or not t.size
    assert np.array_equal(t, expected)


def test_equal_seeds_give_equal_values_and_names_tell_them_apart() -> None:
    def drawn(**settings: Any) -> list[float]:
        return Tensor(11, "normal", **settings).tolist()

    assert drawn(seed=3) == drawn(seed=3, kind=HOST)
    assert len({tuple(drawn(seed=s, name=n)) for s in (0, 3) for n in ("W", "b")}) == 4


# --- numbers, text, truth --------------------------------------------------------------------


def test_python_numbers() -> None:
    t = asarray([[2.5, -1.0]])
    one = t[0, 0]
    assert (float(one), int(one), bool(one), one.item()) == (2.5, 2, True, 2.5)
    assert f"{one:.3f}" == "2.500"
    assert [10, 20, 30][asarray(2)] == 30
    assert t.tolist() == [[2.5, -1.0]]
    assert [row.tolist() for row in t] == [[2.5, -1.0]]
    assert len(t) == 1
    with pytest.raises(TypeError, match="unhashable"):
        hash(t)


def test_repr_is_numpys_with_dtype_and_kind() -> None:
    t = asarray(np.array([[1, 2.5], [3, 4]], np.float32), kind=HOST)
    assert repr(t) == ("Tensor([[1. , 2.5],\n        [3. , 4. ]], dtype=float32, kind=HOST)")
    assert repr(Tensor((2, 0))) == "Tensor([], shape=(2, 0), dtype=float32, kind=MANAGED)"
    assert repr(asarray(True)) == "Tensor(True, dtype=bool, kind=MANAGED)"
    assert "..." in repr(Tensor(100_000))
    assert str(asarray(7)) == f"{asarray(7)}" == repr(asarray(7))


# --- arithmetic ------------------------------------------------------------------------------


def test_numbers_and_arrays_on_either_side_give_tensors() -> None:
    t = asarray(numbers(3, 4), kind=HOST)
    a = numbers(3, 4, seed=1)
    for result, expected in [
        (np.float32(2) * t, 2 * t.read()),
        (2 - t, 2 - t.read()),
        (a / t, a / t.read()),
        (t + a, t.read() + a),
        (t @ a.T, t.read() @ a.T),
        (t > 50, t.read() > 50),
        (t == a, t.read() == a),
        (t != a, t.read() != a),
    ]:
        assert isinstance(result, Tensor)
        assert (result.kind, result.dtype) == (HOST, expected.dtype)
        assert np.array_equal(result, expected)
    assert t not in [None, "text"], "what is no number is not equal, and no error"


def test_results_do_not_change_with_their_operands() -> None:
    t = asarray(numbers(3, 4))
    results = [
        t * 1,
        t.sum(),
        t.astype("float32"),
        t[[0, 1]],
        ops.transpose(t),
        ops.reshape(t, (12,)),
    ]
    copies = [r.tolist() for r in results]
    t[...] = -1
    assert [r.tolist() for r in results] == copies


def test_operands_like_some_before_are_not_checked_again_and_others_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(5)
    a, b, c = (Tensor.wrap(rng.standard_normal(s)) for s in ((61, 7), (7, 13), (7, 13)))
    asked, infer = [], Op.infer

    def counted(op: Op, specs: Any, attributes: Any) -> Any:
        asked.append(op.name)
        return infer(op, specs, attributes)

    monkeypatch.setattr(Op, "infer", counted)
    for other in (b, c, b):
        np.testing.assert_array_equal((a @ other).read(), a.read() @ other.read())
    assert asked == ["matmul"]
    for _ in range(2):
        with pytest.raises(errors.ShapeError, match=r"^matmul: axis k is 13 in x but 7 in w"):
            b @ c
    assert (a @ b.astype("float32")).dtype == np.float64
    assert ops.sum(a, 1).shape == (61,)  # attributes that compare equal may mean something else
    with pytest.raises(errors.ShapeError, match="axis must be an integer"):
        ops.sum(a, True)


def test_truth_values() -> None:
    t = asarray([1, 5, 9, 12])
    assert t[(t > 2) & ~(t == 9)].tolist() == [5, 12]
    assert t[(t < 2) | (t > 10)].tolist() == [1, 12]
    assert ((t > 2) ^ (t > 10)).tolist() == [False, True, True, False]
    with pytest.raises(errors.DTypeError, match="logical_and: expected bool, got int64"):
        print(t & 3)


def test_operators_in_place_write_into_the_memory() -> None:
    t = asarray(np.arange(12.0).reshape(3, 4))
    row, expected = t[1], np.arange(12.0).reshape(3, 4)
    row += 1
    row *= asarray([1.0, 2.0, 3.0, 4.0])
    t[:, 1] -= 0.5
    t /= 2
    expected[1] = (expected[1] + 1) * [1, 2, 3, 4]
    expected[:, 1] -= 0.5
    assert np.array_equal(t, expected / 2)
    whole = asarray([1, 2])
    with pytest.raises(errors.DTypeError, match="expected int64, got float64"):
        whole += 0.5
    with pytest.raises(errors.ShapeError, match=r"expected shape \(2,\), got \(3, 2\)"):
        whole += np.ones((3, 2), int)


def test_write_and_read() -> None:
    t = asarray(numbers(3, 4))
    new = numbers(3, 4, seed=5)
    t.write(new)
    assert np.array_equal(t, new)
    t.T.write(new.T + 1)
    assert np.array_equal(t, new + 1)
    assert not np.shares_memory(t.read(), new)
    assert np.shares_memory(t.read(), t.numpy())
    with pytest.raises(ValueError, match="read-only"):
        t.read()[0, 0] = 1
    with pytest.raises(errors.ShapeError, match=r"expected shape \(3, 4\), got \(4, 3\)"):
        t.write(new.T)
    with pytest.raises(errors.DTypeError, match="expected float32, got float64"):
        t.write(new.astype(float))


# --- kinds of memory -------------------------------------------------------------------------


@pytest.mark.parametrize("to", KINDS)
@pytest.mark.parametrize("kind", KINDS)
def test_values_move_between_kinds(devices: list[SimulatedDevice], kind: Kind, to: Kind) -> None:
    a = numbers(5, 7)
    t = asarray(a, kind=kind)
    assert (t.kind, t.to(kind) is t) == (kind, True)
    for source, expected in [(t, a), (t[1:4, ::2], a[1:4, ::2]), (t.T, a.T), (t[2], a[2])]:
        moved = source.to(to, 1)
        assert (moved.kind, moved.device) == (to, 1)
        assert np.array_equal(moved, expected)
        moved[...] = 0
    assert np.array_equal(t, a), "a copy, not a view"


@pytest.mark.parametrize("kind", KINDS)
def test_arithmetic_and_writing_in_every_kind(devices: list[SimulatedDevice], kind: Kind) -> None:
    a = numbers(5, 7)
    t = Tensor((5, 7), kind=kind)
    assert not np.array(t).any()
    t[...] = a
    t[1:3, ::-2] = 0.5
    a[1:3, ::-2] = 0.5
    t[4, 6] = -3
    a[4, 6] = -3
    t[t > 90] = 1
    a[a > 90] = 1
    t.T[2] += 1
    a.T[2] += 1
    t[3].write(np.ones(7, np.float32))
    a[3] = 1
    result = t * 2 + 1
    assert (result.kind, t[4, 6].item()) == (kind, -3)
    assert np.array_equal(result, a * 2 + 1)
    assert t[[3, 0]].kind is kind
    assert np.array_equal(t[[3, 0]], a[[3, 0]])
    assert repr(t[0, 0]) == f"Tensor({a[0, 0]!s}, dtype=float32, kind={kind.name})".replace(
        ".0,", ".,"
    )


def test_device_tensors_move_only_what_they_span(devices: list[SimulatedDevice]) -> None:
    t, counts = asarray(numbers(100, 7), kind=DEVICE), devices[0].counts
    before = counts.bytes_to_host
    float(t[3, 5])
    assert counts.bytes_to_host - before == 4
    t[10:12].tolist()
    assert counts.bytes_to_host - before == 4 + 2 * 7 * 4
    sent = counts.bytes_to_device
    t[10:12] = 1
    assert counts.bytes_to_device - sent == 2 * 7 * 4
    fetched = counts.to_host
    t[4:9].copy()
    assert counts.to_host == fetched, "a copy on the device stays there"


def test_reading_a_managed_tensor_leaves_the_device_valid(devices: list[SimulatedDevice]) -> None:
    t = asarray(numbers(3, 4))
    t.memory.device_pointer()
    repr(t)
    t.read()
    t.tolist()
    t * 2
    assert t.memory.device_valid
    np.asarray(t)
    assert not t.memory.device_valid, "what is handed out can be written"


# --- copies ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["bfloat16", "float64", "bool"])
def test_copy_and_pickle(devices: list[SimulatedDevice], kind: Kind, name: str) -> None:
    t = asarray(numbers(6, 5, dtype=name), kind=kind)[1:, ::2]
    for twin in (t.copy(), copy.copy(t), copy.deepcopy(t), pickle.loads(pickle.dumps(t))):
        assert (twin.kind, twin.dtype, twin.shape) == (kind, t.dtype, t.shape)
        assert twin.tolist() == t.tolist()
        twin[...] = 0
        assert np.array(t).any()
    assert len(pickle.dumps(t)) < 600, "only what the view shows"


def total_of(t: Tensor) -> tuple[float, Tensor]:
    t[0, 0] += 1
    return float(t.sum()), t


def test_pickle_through_another_process() -> None:
    t = asarray(numbers(5, 7))
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        total, back = pool.apply(total_of, (t,))
    assert total == float(t.read().sum() + 1)
    assert back[0, 0] == t[0, 0] + 1
    assert np.array_equal(back[1:], t[1:])


@pytest.mark.parametrize("name", sorted(DTYPES))
def test_astype(name: str) -> None:
    a = np.array([[0.0, 1.5], [200.0, 3.0]])
    t = asarray(a).astype(name)
    assert t.dtype == DTYPES[name]
    assert t.tolist() == a.astype(DTYPES[name]).tolist()
    same = t.astype(name)
    same[0, 0] = 1
    assert t[0, 0] == 0, "always a copy"


# --- NumPy's and DLPack's doors --------------------------------------------------------------


def test_array_shares_memory_unless_it_must_copy() -> None:
    t = asarray(numbers(3, 4))
    view = np.asarray(t)
    view[1, 2] = -1
    assert t[1, 2] == -1
    assert np.shares_memory(np.asarray(t, np.float32), view)
    assert np.shares_memory(np.array(t, copy=False), view)
    assert not np.shares_memory(np.array(t), view)
    assert np.asarray(t, np.float64).dtype == np.float64
    with pytest.raises(ValueError, match="another dtype needs a copy"):
        np.array(t, np.float64, copy=False)
    assert np.stack([t, t]).shape == (2, 3, 4)
    assert np.asarray([t[0], t[1]]).shape == (2, 4)


def test_array_of_a_device_tensor_is_a_copy(devices: list[SimulatedDevice]) -> None:
    t = asarray(numbers(3, 4), kind=DEVICE)
    np.asarray(t)[0, 0] = -1
    assert t[0, 0] == numbers(3, 4)[0, 0]
    with pytest.raises(ValueError, match="DEVICE memory needs a copy"):
        np.array(t, copy=False)


def test_a_numpy_view_outlives_its_tensor() -> None:
    view = np.asarray(Tensor((101, 7), init.constant(3), kind=MANAGED))
    plain = np.asarray(Tensor((101, 7)))
    for _ in range(30):
        Tensor((101, 7))[...] = -1
    assert np.all(view == 3)
    assert np.all(plain == 0)


def test_cuda_array_interface_is_for_device_tensors_only(devices: list[SimulatedDevice]) -> None:
    assert not hasattr(Tensor(3), "__cuda_array_interface__")
    assert not hasattr(Tensor(3, kind=HOST), "__cuda_array_interface__")
    for kind in (DEVICE, CUDA_MANAGED):
        t = asarray(numbers(5, 7), kind=kind)[1:, ::3]
        door = t.__cuda_array_interface__
        assert door["shape"] == (4, 3)
        assert door["strides"] == (28, 12)
        assert door["typestr"] == "<f4"
        assert door["data"] == (t.memory.device_pointer() + 28, False)


# --- mistakes --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: Tensor((2, -3)), errors.ShapeError, r"got \(2, -3\)"),
        (lambda: Tensor((2, 3.5)), errors.ShapeError, r"integers of at least 0, got \(2, 3.5\)"),
        (lambda: Tensor("ab"), errors.ShapeError, "got 'ab'"),
        (lambda: Tensor([1, 2, 3]), errors.ArgumentError, r"a list .* md.asarray\(\[...\]\) for values"),
        (lambda: Tensor([[1.0, 2.0]]), errors.ArgumentError, "a list could be a shape or values"),
        (lambda: Tensor(np.array([1, 2])), errors.ArgumentError, "a ndarray could be a shape or values"),
        (lambda: Tensor(asarray([1, 2])), errors.ArgumentError, "a Tensor could be a shape or values"),
        (lambda: Tensor(3, dtype="flot32"), errors.DTypeError, "did you mean 'float32'"),
        (lambda: Tensor(3, init.normal(), "int32"), errors.DTypeError, "expected a floating-point dtype"),
        (lambda: Tensor(3, "glorot_unifrom"), errors.UnknownNameError, "did you mean 'glorot_uniform'"),
        (lambda: Tensor(3, 0.5), errors.ArgumentError, r"such as md.init.normal\(\) or its name"),
        (lambda: Tensor(3, kind=DEVICE), errors.DeviceError, "DEVICE memory: device 0 cannot be used"),
        (lambda: Tensor((10**6, 10**6, 10**6)), errors.OutOfMemoryError, "were asked for"),
        (lambda: len(Tensor(())), errors.ShapeError, "without axes has no length"),
        (lambda: list(Tensor(())), errors.ShapeError, "without axes"),
        (lambda: bool(Tensor(2)), ValueError, "neither true nor false"),
        (lambda: float(Tensor(2)), errors.ShapeError, r"expected one element, got 2 of shape \(2,\)"),
        (lambda: [1, 2][Tensor(())], errors.DTypeError, "expected an integer without axes, got float32"),
        (lambda: Tensor(3, dtype="bfloat16").__dlpack__(), errors.DTypeError, "cannot export bfloat16"),
    ],
)  # fmt: skip
def test_mistakes(make: Any, error: type[Exception], text: str) -> None:
    from magmadnn.backends import cuda

    before = cuda.install(cuda.Provider(lambda: (0, "no driver here"), lambda n: None))
    try:
        with pytest.raises(error, match=text) as caught:
            make()
    finally:
        cuda.install(before)
    assert isinstance(caught.value, errors.MagmaDNNError)
    assert "\n" not in str(caught.value)
