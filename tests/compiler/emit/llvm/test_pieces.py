"""Modules compiled in pieces: what calls what, faults, and what a process gets back."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from magmadnn.compiler.emit.llvm import pieces
from magmadnn.compiler.emit.llvm.kernel import add_function, symbol
from magmadnn.compiler.emit.llvm.pieces import Pieces, joined, parts_of, quick_turns
from magmadnn.compiler.emit.llvm.target import Library, host
from magmadnn.compiler.kernels.gemm import Gemm
from magmadnn.errors import DeviceError


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
    assert len(codes) == sum(bool(function.blocks) for function in made.module.functions)
    library = Library(*codes)
    assert library.address(symbol(0)) != library.address(symbol(1))


def test_a_fault_in_a_piece_is_told(monkeypatch):
    def refuse(*_: object) -> bytes:
        raise DeviceError("no code")

    monkeypatch.setattr(pieces, "object_code", refuse)
    with ThreadPoolExecutor(1) as pool:
        made = Pieces("kernel", host(), pool)
        add_function(made.module, symbol(0), Gemm("float32"), host())
        made.hand_over()
        with pytest.raises(DeviceError, match="no code"):
            made.code()


def test_turns_are_as_before_afterwards():
    before = sys.getswitchinterval()
    with pytest.raises(ZeroDivisionError), quick_turns():
        assert sys.getswitchinterval() < before
        _ = 1 / 0
    assert sys.getswitchinterval() == pytest.approx(before)
