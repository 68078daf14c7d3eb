"""What cuBLASLt is called with: a library made of NumPy refuses what the real one refuses, and computes."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from magmadnn.backends.cuda._cublaslt import Products
from magmadnn.backends.cuda.engine import PRODUCT_WORKSPACE, ProductNode
from magmadnn.errors import DeviceError
from magmadnn.memory import as_dtype

DTYPES = {0: "float32", 1: "float64", 2: "float16", 14: "bfloat16"}
COMPUTE = {68: "float32", 77: "tf32", 70: "float64"}
INVALID, UNSUPPORTED = 7, 15


@dataclass
class Layout:
    """A matrix, column by column."""

    dtype: str
    rows: int
    columns: int
    step: int


@dataclass
class Operation:
    """What a product is described by; attributes by their numbers."""

    compute: str
    scale: str
    attributes: dict[int, Any] = field(default_factory=dict)


class Library:
    """cuBLASLt on the host. Handles are numbers; every one must be destroyed, and none used after it."""

    def __init__(self) -> None:
        self.held: dict[int, Any] = {}
        self.preferred: list[dict[int, int]] = []
        self.calls: list[str] = []
        self._next = 100
        self.cublasLtGetVersion = _Version()

    def _made(self, goal: Any, what: Any) -> int:
        self._next += 1
        self.held[self._next] = what
        goal._obj.value = self._next
        return 0

    def cublasLtCreate(self, goal: Any) -> int:
        return self._made(goal, "library")

    def cublasLtMatmulDescCreate(self, goal: Any, compute: Any, scale: Any) -> int:
        return self._made(goal, Operation(COMPUTE[compute.value], DTYPES[scale.value]))

    def cublasLtMatmulDescSetAttribute(self, handle: Any, number: Any, at: Any, size: Any) -> int:
        assert ctypes.sizeof(at._obj) == size.value
        assert size.value == (8 if number.value == 8 else 4)
        self.held[handle.value].attributes[number.value] = at._obj.value
        return 0

    def cublasLtMatrixLayoutCreate(
        self, goal: Any, dtype: Any, rows: Any, columns: Any, step: Any
    ) -> int:
        if step.value < rows.value or not rows.value or not columns.value:
            return INVALID
        layout = Layout(DTYPES[dtype.value], rows.value, columns.value, step.value)
        return self._made(goal, layout)

    def cublasLtMatmulPreferenceCreate(self, goal: Any) -> int:
        return self._made(goal, {})

    def cublasLtMatmulPreferenceSetAttribute(
        self, handle: Any, number: Any, at: Any, size: Any
    ) -> int:
        assert size.value == ctypes.sizeof(at._obj) == (8 if number.value == 1 else 4)
        self.held[handle.value][number.value] = at._obj.value
        return 0

    def _destroyed(self, handle: Any) -> int:
        del self.held[handle.value]
        return 0

    cublasLtMatmulDescDestroy = _destroyed
    cublasLtMatrixLayoutDestroy = _destroyed
    cublasLtMatmulPreferenceDestroy = _destroyed

    def cublasLtMatmulAlgoGetHeuristic(
        self, handle: Any, operation: Any, a: Any, b: Any, c: Any, d: Any, wishes: Any, most: Any,
        found: Any, count: Any,
    ) -> int:  # fmt: skip
        self.preferred.append(dict(self.held[wishes.value]))
        if status := self._refused(operation, a, b, c):
            return status
        count._obj.value = min(most.value, 3)
        for k in range(count._obj.value):
            found[k].algorithm[0] = k + 1
            found[k].state = UNSUPPORTED if k == 1 else 0
        return 0

    def _refused(self, operation: Any, a: Any, b: Any, c: Any) -> int:
        described = self.held[operation.value]
        one, two, three = (self.held[x.value] for x in (a, b, c))
        turned = [described.attributes.get(k, 0) for k in (3, 4)]
        inner = [x.columns if not t else x.rows for x, t in ((one, turned[0]),)]
        inner += [x.rows if not t else x.columns for x, t in ((two, turned[1]),)]
        if inner[0] != inner[1] or one.dtype != two.dtype:
            return INVALID
        if described.attributes.get(7, 1) & 4 and DTYPES[described.attributes[26]] != three.dtype:
            return INVALID
        return 0

    def cublasLtMatmul(
        self, handle: Any, operation: Any, alpha: Any, at_a: Any, a: Any, at_b: Any, b: Any, beta: Any,
        at_c: Any, c: Any, at_d: Any, d: Any, algorithm: Any, workspace: Any, nbytes: Any, stream: Any,
    ) -> int:  # fmt: skip
        assert self.held[handle.value] == "library"
        assert (at_c.value, c.value) == (at_d.value, d.value)
        assert nbytes.value == PRODUCT_WORKSPACE
        if status := self._refused(operation, a, b, c):
            return status
        described = self.held[operation.value]
        attributes, wide = described.attributes, np.dtype(described.scale)
        self.calls.append(
            f"{described.compute} algorithm {algorithm._obj[0]} stream {stream.value}"
        )
        one, two = (matrix(p.value, self.held[x.value]) for p, x in ((at_a, a), (at_b, b)))
        one = one.T if attributes[3] else one
        two = two.T if attributes[4] else two
        goal = matrix(at_c.value, self.held[c.value])
        factors = [number(x.value, wide) for x in (alpha, beta)]
        made = factors[0] * (one.astype(wide) @ two.astype(wide))
        if factors[1]:
            made += factors[1] * goal.astype(wide)
        epilogue = attributes[7]
        if epilogue & 4:
            kind = Layout(DTYPES[attributes[26]], made.shape[0], 1, made.shape[0])
            made += matrix(attributes[8], kind).astype(wide)
        goal[:] = np.maximum(made, 0) if epilogue & 2 else made
        return 0


class _Version:
    restype: Any = None

    def __call__(self) -> int:
        assert self.restype is ctypes.c_size_t
        return 130100


def matrix(address: int, layout: Layout) -> np.ndarray:
    """A matrix that lies column by column."""
    dtype = as_dtype(layout.dtype)
    count = (layout.columns - 1) * layout.step + layout.rows
    raw = (ctypes.c_char * (count * dtype.itemsize)).from_address(address)
    flat = np.frombuffer(raw, dtype)
    strides = (dtype.itemsize, layout.step * dtype.itemsize)
    return np.lib.stride_tricks.as_strided(flat, (layout.rows, layout.columns), strides)


def number(address: int, dtype: np.dtype[Any]) -> Any:
    raw = (ctypes.c_char * dtype.itemsize).from_address(address)
    return np.frombuffer(raw, dtype)[0]


def arrays(
    m: int, n: int, k: int, turned: tuple[bool, bool], dtype: str, stored: str
) -> tuple[np.ndarray, ...]:
    """A, B and C with room beside each row."""
    rng = np.random.default_rng(m + n)
    shapes = ((k, m) if turned[0] else (m, k), (n, k) if turned[1] else (k, n), (m, n))
    wide = [rng.standard_normal((rows, columns + 3)) for rows, columns in shapes]
    kinds = (dtype, dtype, stored)
    made = [x.astype(as_dtype(kind)) for x, kind in zip(wide, kinds, strict=True)]
    return tuple(x[:, :-3] for x in made)


def node_of(
    turned: tuple[bool, bool], a: np.ndarray, b: np.ndarray, c: np.ndarray, **more: Any
) -> ProductNode:
    sizes = (*c.shape, a.shape[0] if turned[0] else a.shape[1])
    rows = tuple(x.strides[0] // x.itemsize for x in (a, b, c))
    addresses = (x.ctypes.data for x in (a, b, c))
    return ProductNode("float32", False, sizes, turned, *addresses, rows, 64, **more)


def wanted(turned: tuple[bool, bool], a: np.ndarray, b: np.ndarray) -> np.ndarray:
    a, b = a.astype(np.float64), b.astype(np.float64)
    return np.asarray((a.T if turned[0] else a) @ (b.T if turned[1] else b))


# --- products ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("turned", [(False, False), (False, True), (True, False), (True, True)])
@pytest.mark.parametrize("half", [None, "bfloat16", "float16"])
def test_products_are_those_of_rows(turned: tuple[bool, bool], half: str | None) -> None:
    library = Library()
    a, b, c = arrays(5, 7, 3, turned, half or "float32", "float32")
    Products(library, 9).multiply(node_of(turned, a, b, c, halves=half))
    np.testing.assert_allclose(c, wanted(turned, a, b), rtol=1e-5, atol=1e-5)
    assert library.calls == ["float32 algorithm 1 stream 9"]
    assert list(library.held.values()) == ["library"]  # all else was given back


def test_bias_what_is_positive_and_rounding() -> None:
    turned = (False, True)
    a, b, c = arrays(6, 5, 4, turned, "bfloat16", "bfloat16")
    bias = np.linspace(-3, 3, 5).astype(as_dtype("bfloat16"))
    node = node_of(
        turned, a, b, c, halves="bfloat16", stored="bfloat16", bias=bias.ctypes.data, positive=True
    )
    Products(Library(), 9).multiply(node)
    expected = np.maximum(wanted(turned, a, b) + bias.astype(np.float64), 0)
    np.testing.assert_allclose(c.astype(np.float64), expected, rtol=2**-7, atol=2**-7)
    assert (expected == 0).any() and (expected > 0).any()


def test_an_update_reads_its_numbers_when_it_runs() -> None:
    turned = (True, False)
    a, b, c = arrays(4, 6, 9, turned, "float32", "float32")
    before, scales = c.copy(), np.array([-0.5, 0.25], np.float32)
    node = node_of(turned, a, b, c, scales=scales.ctypes.data)
    Products(Library(), 9).multiply(node)
    np.testing.assert_allclose(c, 0.25 * before - 0.5 * wanted(turned, a, b), rtol=1e-5, atol=1e-5)


def test_arithmetic_is_as_the_node_says() -> None:
    library, turned = Library(), (False, False)
    a, b, c = arrays(5, 7, 3, turned, "float32", "float32")
    products, node = Products(library, 9), node_of(turned, a, b, c)
    products.multiply(replace(node, tensor_float=True))
    wide = arrays(5, 7, 3, turned, "float64", "float64")
    products.multiply(replace(node_of(turned, *wide), dtype="float64"))
    half = arrays(5, 7, 3, turned, "float16", "float32")
    products.multiply(replace(node_of(turned, *half), halves="float16", tensor_float=True))
    assert [call.split()[0] for call in library.calls] == ["tf32", "float64", "float32"]


# --- algorithms --------------------------------------------------------------------------------------


def test_proposals_are_those_that_the_library_has() -> None:
    library, turned = Library(), (False, False)
    a, b, c = arrays(5, 7, 3, turned, "float32", "float32")
    node = node_of(turned, a, b, c)
    products = Products(library, 9)
    found = products.algorithms(node, 8)
    assert [int.from_bytes(x[:8], "little") for x in found] == [1, 3]
    products.multiply(replace(node, algorithm=found[1]))
    assert library.calls == ["float32 algorithm 3 stream 9"]
    assert len(products.algorithms(node, 1)) == 1
    wishes = library.preferred[0]
    assert wishes[1] == PRODUCT_WORKSPACE
    aligned = [x & -x for x in (node.b, node.a, node.c, node.c)]
    assert [wishes[k] for k in (5, 6, 7, 8)] == [min(x, 256) for x in aligned]


@pytest.mark.parametrize("half", ["bfloat16", "float16"])
def test_sums_that_are_stored_as_halves_are_float32s_until_then(half: str) -> None:
    """Else a library that cuts sums along k may round each part and each sum of two."""
    library, turned = Library(), (False, False)
    products = Products(library, 9)
    a, b, c = arrays(5, 7, 3, turned, half, half)
    stored = node_of(turned, a, b, c, halves=half, stored=half)
    products.algorithms(stored, 8)
    products.multiply(stored)
    assert [wishes[3] for wishes in library.preferred] == [2, 2]
    a, b, c = arrays(5, 7, 3, turned, half, "float32")
    products.algorithms(node_of(turned, a, b, c, halves=half), 8)
    assert 3 not in library.preferred[2]  # any way: all of them add float32


def test_what_the_library_refuses_has_no_algorithm() -> None:
    turned = (False, False)
    a, b, c = arrays(5, 7, 3, turned, "bfloat16", "bfloat16")
    node = node_of(turned, a, b, c, halves="bfloat16", stored="bfloat16")
    assert Products(Library(), 9).algorithms(node, 4)
    library = Library()
    library._refused = lambda *_: UNSUPPORTED  # type: ignore[method-assign]
    refusing = Products(library, 9)
    assert refusing.algorithms(node, 4) == []
    with pytest.raises(DeviceError, match=r"cuBLAS has no product of float32 .*\(5, 7, 3\)"):
        refusing.multiply(node)
    with pytest.raises(DeviceError, match="cublasLtMatmul of cuBLAS gives status 15"):
        refusing.multiply(replace(node, algorithm=bytes(64)))
