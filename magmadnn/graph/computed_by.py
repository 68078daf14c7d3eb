"""What an op's record says of what computes it: a function of a library, or a kernel of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from .dim import Shape, Size
from .signature import Attributes

RESULT = -1  # the result's number beside those of operands


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
    made by `Op.by_library` of others, whose operands may lie otherwise than the library wants them. Some
    operands, and the result, may be `strided`: rows [..., columns] that are further apart than they are long,
    as the channels of one branch within a concatenation are.

    Attributes:
        function: BLAS's or LAPACK's name without the letter of the dtype, as "potrf".
        settings: attributes of the op, all True or False, that the function is told, in the order of its
            table's entries.
        dtypes: what it computes in; operands and result are all of one.
        whole: whether it takes whole arrays; `settings` are then those of its attributes that it is told.
        strided: of a function of whole arrays, the numbers of such operands, and `RESULT`.
        one_byte: of a function of whole arrays, the numbers of operands, and `RESULT`, that are uint8,
            whatever it computes in.
        alignment: bytes, of which multiples lie between such rows, and in front of the first.
        of_models: whether operands and the result have an axis of models in front, and a function of whole
            arrays is called for each; so have vectors that it absorbs.
        again: whether each reader has a call of its own, as late as can be, where the result is of halves:
            it takes little time, and its result more memory than what it is made of.
        operations: how many operations on numbers that takes, by the shapes of the result and the operands.
    """

    function: str
    settings: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ("float32", "float64")
    whole: bool = False
    strided: tuple[int, ...] = ()
    one_byte: tuple[int, ...] = ()
    alignment: int = 1
    of_models: bool = False
    again: bool = False
    operations: Callable[..., Size] = lambda result, *operands: 0


@dataclass(frozen=True)
class OwnKernel:
    """A kernel for one op, which walks in an order of its own: running sums.

    Operands are packed and of the result's dtype. The kernel is found by its name: `NAME.py` in
    `compiler/kernels` describes it, with the class that the file is called by, `write_NAME` in
    `compiler/llvm/fused/NAME.py` writes it for the CPU, `choose_NAME` in `compiler/cuda/fused/NAME.py` for a
    GPU. Where that has no such file, NumPy computes the step there.

    Attributes:
        name: of these files.
        dtypes: what it computes in.
        walked: the shape of the matrix whose parts threads take, [..., columns], by the result's shape and
            the op's attributes.
        numbers: what its further slots hold, by the same two.
        operands: slots of their addresses, in order; the result's is `result`.
        settings: attributes of the op that its description has as fields, behind the dtype.
        work: operations for each element of that matrix: the slot that tells; "" for one.
    """

    name: str
    dtypes: tuple[str, ...]
    walked: Callable[[Shape, Attributes], Shape]
    numbers: Callable[[Shape, Attributes], Mapping[str, Size]]
    operands: tuple[str, ...] = ("source",)
    settings: tuple[str, ...] = ()
    work: str = ""
