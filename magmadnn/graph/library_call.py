"""What an op's record says of the library's function that computes it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .dim import Size


@dataclass(frozen=True)
class LibraryCall:
    """A function of a library, called once for each matrix of a stack, or once for whole arrays.

    Operands and result are stacks, [..., rows, columns]; a loop goes over the leading axes. Every operand has
    the leading axes of the result, or is one matrix that serves all; `Op.rewrites` makes others so. Operands
    are read as the op's record orders them, the result is written. What the function finds wrong sets a word,
    and the op's NumPy function is then run to say what.

    Each target has a table from the name to what is called there: `compiler/llvm/library/calls.py` for the
    CPU, `compiler/cuda/library/calls.py` for a GPU. Where a target has none, or its library is not installed,
    NumPy computes the step.

    A function of whole arrays takes packed operands of any shapes, and attributes of the op. Such ops are
    made by `Op.by_library` of others, whose operands may lie otherwise than the library wants them.

    Attributes:
        function: BLAS's or LAPACK's name without the letter of the dtype, as "potrf".
        settings: attributes of the op, all True or False, that the function is told, in the order of its
            table's entries.
        dtypes: what it computes in; operands and result are all of one.
        whole: whether it takes whole arrays; `settings` are then those of its attributes that it is told.
        operations: how many operations on numbers that takes, by the shapes of the result and the operands.
    """

    function: str
    settings: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ("float32", "float64")
    whole: bool = False
    operations: Callable[..., Size] = lambda result, *operands: 0
