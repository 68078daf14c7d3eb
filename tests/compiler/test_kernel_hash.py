"""Descriptions of kernels keep their hash, in one process only."""

from __future__ import annotations

import pickle
from dataclasses import replace

from magmadnn.compiler.kernels.gemm import Finish, Gemm
from magmadnn.compiler.kernels.operands import Operand, Result
from magmadnn.compiler.kernels.rows import Rows, Stage

FORMULA = ("add", ("product",), ("argument", 0))


def described() -> list[object]:
    operand, result = Operand("x0", "float32", "row"), Result("y0", "float32", ("argument", 0))
    finish = Finish((operand,), (), FORMULA)
    return [finish, Gemm("float32", epilogue=finish), Rows((operand,), (Stage(store=(result,)),))]


def test_equal_descriptions_have_equal_hashes_and_changed_ones_are_hashed_anew() -> None:
    for one, other in zip(described(), described(), strict=True):
        assert one == other and hash(one) == hash(other) == hash(one)
    gemm = described()[1]
    assert isinstance(gemm, Gemm)
    changed = replace(gemm, transpose_a=True)
    assert changed != gemm and hash(changed) != hash(gemm)
    assert changed.slots == gemm.slots


def test_a_hash_does_not_leave_the_process() -> None:
    """Text is hashed otherwise in another one."""
    for kernel in described():
        hash(kernel)
        assert b"_hash" not in pickle.dumps(kernel)
        again = pickle.loads(pickle.dumps(kernel))
        assert again == kernel and hash(again) == hash(kernel)
