"""Products to be measured: in words and back, and as calls on matrices of the same strides."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from magmadnn.compiler.kernels.gemm import Gemm, Loading
from magmadnn.compiler.llvm import kernel
from magmadnn.compiler.llvm.gemm.cuts import Way
from magmadnn.compiler.llvm.ir.target import host
from magmadnn.compiler.llvm.object.cache import kernel_cache
from magmadnn.compiler.llvm.writers import scratch_bytes
from magmadnn.graph.spec import as_dtype

_APART = ("lda", "ldb", "ldc")
_DTYPES = ("float32", "float64")
_HALVES = ("bfloat16", "float16")
_WORDS = re.compile(
    r"(\w+)((?: \w+ as \w+,){2})? (\d+) x (\d+) x (\d+) ([NT])([NT]), rows (\d+) (\d+) (\d+) apart"
)
# Of matrices that take turns: in a training step they are not in the nearest caches.
_SETS_BYTES = 8 << 20
_MOST_SETS = 16


def product_words(gemm: Gemm, values: Mapping[str, int]) -> str:
    """A product as text: dtypes, m x k x n, how A and B are stored, elements from row to row."""
    rows, columns = values["row1"] - values["row0"], values["column1"] - values["column0"]
    stored = "NT"[gemm.transpose_a] + "NT"[gemm.transpose_b]
    apart = " ".join(str(values[slot]) for slot in _APART)
    read = "".join(f" {load.stored} as {load.digits}," for load in _loads(gemm))
    return f"{gemm.dtype}{read} {rows} x {values['k']} x {columns} {stored}, rows {apart} apart"


def product_of(words: str) -> tuple[Gemm, dict[str, int]] | None:
    """What `product_words` said; None where it said something else."""
    found = _WORDS.fullmatch(words)
    if found is None:
        return None
    dtype, read, m, k, n, a, b, *apart = found.groups()
    loads = [_loading(each) for each in (read or "").split(",")[:2] if each]
    if dtype not in _DTYPES or not all(_is_read(load, dtype) for load in loads):
        return None
    load_a, load_b = (
        (load if load.digits != dtype else None for load in loads) if loads else (None,) * 2
    )
    values = dict(zip(_APART, map(int, apart), strict=True))
    values |= {"row0": 0, "row1": int(m), "column0": 0, "column1": int(n), "k": int(k)}
    gemm = Gemm(dtype, a == "T", b == "T", load_a=load_a, load_b=load_b)
    inner = {
        "lda": int(m) if gemm.transpose_a else int(k),
        "ldb": int(k) if gemm.transpose_b else int(n),
    }
    short = any(values[slot] < least for slot, least in {**inner, "ldc": int(n)}.items())
    return None if short else (gemm, values)


def _loading(words: str) -> Loading:
    stored, digits = words.strip().split(" as ")
    return Loading(stored, digits)


def _is_read(load: Loading, dtype: str) -> bool:
    """Whether there is such a way to read a factor."""
    if load.digits not in _HALVES:
        return load == Loading(dtype, dtype)
    return load.stored in ("float32", load.digits)


def _loads(gemm: Gemm) -> list[Loading]:
    """How A and B are read, if one of them is converted; the other's elements are what they are."""
    if gemm.load_a is None and gemm.load_b is None:
        return []
    return [load or Loading(gemm.dtype, gemm.dtype) for load in (gemm.load_a, gemm.load_b)]


def products(values: Mapping[str, int]) -> int:
    """Multiplications."""
    rows, columns = values["row1"] - values["row0"], values["column1"] - values["column0"]
    return rows * columns * values["k"]


def _stored(gemm: Gemm) -> dict[str, np.dtype[Any]]:
    """The dtypes of the matrices in memory."""
    a, b = (load.stored if load else gemm.dtype for load in (gemm.load_a, gemm.load_b))
    return {"a": as_dtype(a), "b": as_dtype(b), "c": as_dtype(gemm.dtype)}


def _shapes(gemm: Gemm, values: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """Rows, and elements from row to row, of the matrices as they are stored."""
    rows, columns = values["row1"] - values["row0"], values["column1"] - values["column0"]
    return {
        "a": (values["k"] if gemm.transpose_a else rows, values["lda"]),
        "b": (columns if gemm.transpose_b else values["k"], values["ldb"]),
        "c": (rows, values["ldc"]),
    }


def matrix_bytes(gemm: Gemm, values: Mapping[str, int]) -> int:
    """Bytes of all three matrices."""
    stored = _stored(gemm)
    sizes = {name: rows * apart for name, (rows, apart) in _shapes(gemm, values).items()}
    return sum(size * stored[name].itemsize for name, size in sizes.items())


def sets_of(gemm: Gemm, values: Mapping[str, int]) -> int:
    """How many sets of matrices take turns in a call of `rotating`: so many products are computed."""
    sets = max(_SETS_BYTES // max(matrix_bytes(gemm, values), 1), 1)
    return min(sets, _MOST_SETS)


def rotating(
    gemm: Gemm, values: Mapping[str, int], ways: Mapping[str, Way]
) -> dict[str, Callable[[], None]]:
    """A call of the bare product for each way, on several sets of matrices of the same strides.

    Together they do not fit the nearest caches.
    """
    bare = {name: _bare(way.gemm) for name, way in ways.items()}
    made = list(dict.fromkeys(bare.values()))
    loaded = dict(zip(made, kernel.load(made, cache=kernel_cache()), strict=True))
    space = _room(max(scratch_bytes(each, host()) for each in made))
    matrices = [_matrices(gemm, values) for _ in range(sets_of(gemm, values))]
    sizes = {
        "row0": 0, "row1": values["row1"] - values["row0"], "column0": 0,
        "column1": values["column1"] - values["column0"], "k": values["k"],
        **{slot: values[slot] for slot in _APART},
    }  # fmt: skip

    def call(each: Gemm, word: int) -> Callable[[], None]:
        blocks = [kernel.block(each, **sizes, **held, cuts=word) for held in matrices]
        product = loaded[each]

        def run(held: Any = matrices) -> None:  # blocks hold addresses only
            for block in blocks:
                product(block, space)

        return run

    return {name: call(bare[name], way.word) for name, way in ways.items()}


def _bare(gemm: Gemm) -> Gemm:
    """The product without what is done to its elements."""
    return Gemm(
        gemm.dtype,
        gemm.transpose_a,
        gemm.transpose_b,
        blocking=gemm.blocking,
        load_a=gemm.load_a,
        load_b=gemm.load_b,
    )


def _matrices(gemm: Gemm, values: Mapping[str, int]) -> dict[str, Any]:
    stored = _stored(gemm)
    made: dict[str, Any] = {}
    for name, (rows, apart) in _shapes(gemm, values).items():
        nbytes = max(rows * apart, 1) * stored[name].itemsize
        made[name] = kernel.scratch(nbytes).view(stored[name])
        made[name][:] = 0.5
    return made


@functools.cache
def _room(nbytes: int) -> Any:
    """Scratch memory: the same for all products, since memory that is lent again is cleared first."""
    return kernel.scratch(nbytes)
