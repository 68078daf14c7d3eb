"""Modules compiled in pieces: what calls what, faults, and what a process gets back."""

from __future__ import annotations

import gc
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from magmadnn.compiler.kernels.gemm import Finish, Gemm
from magmadnn.compiler.kernels.operands import Operand, Result
from magmadnn.compiler.kernels.rows import pointwise
from magmadnn.compiler.llvm.gemm.finish import Finishing
from magmadnn.compiler.llvm.ir.target import host
from magmadnn.compiler.llvm.kernel import add_function, llvm_text, symbol
from magmadnn.compiler.llvm.object import parallel as pieces
from magmadnn.compiler.llvm.object.library import Library, joined, parts_of
from magmadnn.compiler.llvm.object.parallel import Pieces, quick_turns
from magmadnn.errors import DeviceError

X = ("argument", 0)
DTYPES = ("float32", "float64")


@pytest.mark.parametrize("codes", [[], [b""], [b"a"], [b"first", b"", b"third" * 1000]])
def test_joined_pieces_come_apart_again(codes):
    assert parts_of(joined(codes)) == codes


def test_pieces_call_each_other(monkeypatch):
    """Every function in a module of its own: all of them are found."""
    monkeypatch.setattr(pieces, "_PIECE", 1)
    with ThreadPoolExecutor(2) as pool:
        made = Pieces("kernel", host(), pool)
        for number, gemm in enumerate((Gemm("float32"), Gemm("float32", transpose_b=True))):
            add_function(made.module, symbol(number), gemm, host())
            made.hand_over()
        codes = parts_of(made.code())
    written = [f for f in made.module.functions if not f.name.startswith("llvm.")]
    assert len(codes) == len(written) > 20
    library = Library(codes, (symbol(0), symbol(1)))
    assert library.address(symbol(0)) != library.address(symbol(1))


def test_products_with_the_same_end_share_its_code():
    """Other ends, or the same with other slots around them, are written anew."""
    halved, doubled = (
        Finish((), (), ("multiply", ("product",), ("constant", x, str(x)))) for x in (0.5, 2.0)
    )
    first = Gemm("float32", epilogue=halved)
    turned, other = replace(first, transpose_a=True), replace(first, epilogue=doubled)

    def ends(*kernels: Gemm) -> int:
        """Functions that hold, or call, what is done to elements last: their names tell."""
        text, names = llvm_text(kernels, host()), {Finishing(kernel).name for kernel in kernels}
        lines = [line for line in text.splitlines() if line.startswith("define ")]
        return sum(any(name in line for name in names) for line in lines)

    assert ends(first) >= 2
    assert ends(first, turned) == ends(first)
    assert ends(first, other) == 2 * ends(first)
    assert ends(first, replace(first, dtype="float64")) == 2 * ends(first)


def test_small_functions_of_several_kernels_make_one_piece():
    kernels = [pointwise((Operand("x", d),), Result("y", d, ("negative", X))) for d in DTYPES]
    with ThreadPoolExecutor(1) as pool:
        made = Pieces("kernel", host(), pool)
        for number, kernel in enumerate(kernels):
            add_function(made.module, symbol(number), kernel, host())
            made.hand_over()
        made.hand_over(is_all=True)
        (code,) = parts_of(made.code())
    symbols = [symbol(number) for number in range(len(kernels))]
    library = Library([code], symbols)
    assert len({library.address(name) for name in symbols}) == len(kernels)


def test_what_was_handed_over_leaves_declarations_and_no_garbage():
    with ThreadPoolExecutor(1) as pool:
        made = Pieces("kernel", host(), pool)
        add_function(made.module, symbol(0), Gemm("float32"), host())
        blocks = [weakref.ref(b) for f in made.module.functions for b in f.blocks]
        gc.collect()
        gc.disable()
        try:
            made.hand_over()
            assert len(blocks) > 100 and not any(block() for block in blocks)
        finally:
            gc.enable()
    assert "define" not in str(made.module)


def test_a_fault_in_a_piece_is_told(monkeypatch):
    def refuse(*_: object) -> bytes:
        raise DeviceError("no code")

    monkeypatch.setattr(pieces, "object_code", refuse)
    with ThreadPoolExecutor(1) as pool:
        made = Pieces("kernel", host(), pool)
        add_function(made.module, symbol(0), Gemm("float32"), host())
        made.hand_over(is_all=True)
        with pytest.raises(DeviceError, match="no code"):
            made.code()


def test_turns_are_as_before_afterwards():
    before = sys.getswitchinterval()
    with pytest.raises(ZeroDivisionError), quick_turns():
        assert sys.getswitchinterval() < before
        _ = 1 / 0
    assert sys.getswitchinterval() == pytest.approx(before)
