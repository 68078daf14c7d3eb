"""Mistakes with arrays on workers: layouts, shapes, dtypes, memory, other and closed workers."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.backends.cuda import device_count
from magmadnn.dmath.layouts.recipes import resolve
from magmadnn.errors import (
    ArgumentError,
    CommunicationError,
    DataError,
    DeviceError,
    DTypeError,
    IndexOutOfRangeError,
    OutOfMemoryError,
    ShapeError,
    UnknownArgumentError,
    UnknownAttributeError,
    UnknownNameError,
)
from tests.refusals.cases import PythonCase, check_in_python

Blocks, Rows = md.dmath.Blocks, md.dmath.Rows


@cache
def w() -> md.workers.Workers:
    """One worker, in this process."""
    return md.workers.Workers(0)


def made(layout: Any) -> Callable[[Path], object]:
    return lambda p: w().ones((4, 4), layout=layout)


def square() -> md.dmath.Matrix:
    return w().ones((4, 4))


def closed() -> tuple[md.workers.Workers, md.dmath.Matrix]:
    other = md.workers.Workers(0)
    a = other.ones((2, 2))
    other.close()
    return other, a


PYTHON: dict[str, PythonCase] = {
    "an owner that is no worker": (
        made(Blocks((2, 2), owners=[[0, 0], [0, 9]])),
        ArgumentError,
        "Blocks: owner 9 names no worker, there are 1: give numbers from 0 to 0",
    ),
    "owners that are no numbers of workers": (
        made(Blocks((2, 2), owners=[[0, 0.5], [0, 0]])),
        ArgumentError,
        "Blocks: owners must be numbers of workers, got float64",
    ),
    "owners for too few blocks": (
        made(Blocks((2, 2), owners=[[0, 0]])),
        ShapeError,
        "Blocks: an owner map of shape (1, 2) does not cover the grid of blocks, (2, 2)",
    ),
    "rows of owners of different lengths": (
        lambda p: Blocks((2, 2), owners=[[0, 0], [0]]),
        ShapeError,
        "Blocks: rows of the owner map differ in length: it has a worker for each block",
    ),
    "cuts between elements": (
        lambda p: Blocks(cuts=((0, 1.5, 4), (0, 4))),
        ArgumentError,
        "Blocks: cuts= must be whole numbers such as (0, 1), got (0, 1.5, 4)",
    ),
    "strips of a part of a row": (
        lambda p: Rows(block=1.5),
        ArgumentError,
        "Rows: block must be a whole number from 1, got 1.5",
    ),
    "complex elements in a real dtype": (
        lambda p: (square() * 1j).to(dtype="float64"),
        DTypeError,
        "to: elements are complex128, which do not go into float64: take md.dmath.real, imag or abs",
    ),
    "complex elements that are sent as real ones": (
        lambda p: w().array([1j], dtype="float32"),
        DTypeError,
        "array: elements are complex128, which do not go into float32: take md.dmath.real, imag or abs",
    ),
    "a complex number in a real array": (
        lambda p: square().__setitem__((0, 0), 1j),
        DTypeError,
        "assign: elements are complex128, which do not go into float64: take md.dmath.real, imag or abs",
    ),
    "complex elements in a real array": (
        lambda p: square().__setitem__(slice(None), np.full((4, 4), 1j)),
        DTypeError,
        "assign: elements are complex128, which do not go into float64: take md.dmath.real, imag or abs",
    ),
    "what is no function to explain": (
        lambda p: w().explain(square()),
        ArgumentError,
        "~explain: takes a function, such as lambda: A @ B, got <Matrix 4 x 4 float64 on 1 workers>",
    ),
    "an explanation within another": (
        lambda p: w().explain(lambda: w().explain(lambda: square() @ square())),
        ArgumentError,
        "explain: within another one: call it once, of both operations",
    ),
    "what is no function to trace": (
        lambda p: w().trace(3),
        ArgumentError,
        "trace: takes a function, such as lambda: A @ B, got 3",
    ),
    "an argument of a function": (
        lambda p: md.dmath.relu(square(), alpha=1),
        UnknownArgumentError,
        "relu: argument 'alpha' is not known: known are layout",
    ),
    "an argument of a reduction": (
        lambda p: square().var(ddof=1),  # type: ignore[attr-defined]  # put on by name
        UnknownArgumentError,
        "var: argument 'ddof' is not known: known are axis, correction, keepdims, layout",
    ),
    "an argument of a layout": (
        lambda p: Rows(rows=4),  # type: ignore[call-arg]
        UnknownArgumentError,
        "Rows: argument 'rows' is not known: known are block, on, sizes",
    ),
    "an argument of workers": (
        lambda p: md.workers(n=4),  # type: ignore[operator]
        UnknownArgumentError,
        "workers: argument 'n' is not known: known are count",
    ),
    "a method that is a function": (
        lambda p: square().reshape(2, 8),  # type: ignore[attr-defined]
        UnknownAttributeError,
        "arrays on workers have no attribute 'reshape': write md.dmath.reshape(x, ...)",
    ),
    "elements that are masked": (
        lambda p: w().array(np.ma.masked_less([1.0, 2.0], 2)),
        DataError,
        "array: elements are masked: fill them, x.filled(value), or leave them out",
    ),
    "blocks that do not cover": (
        made(Blocks(cuts=((0, 2), (0, 4)))),
        ShapeError,
        (
            "Blocks: cuts [0, 2] do not cover axis 0 of size 4: they begin with 0, do not fall, and "
            "end with 4"
        ),
    ),
    "blocks of other axes": (
        made(Blocks((2,))),
        ShapeError,
        "Blocks: blocks of 1 axes do not cover an array of 2, shape (4, 4)",
    ),
    "blocks of no size": (
        lambda p: Blocks((0, 2)),
        ArgumentError,
        "Blocks: sizes of blocks must be at least 1, got 0",
    ),
    "a layout of no workers": (
        lambda p: Rows(on=()),
        ArgumentError,
        "Rows: on= names no worker",
    ),
    "a worker that is no whole number": (
        lambda p: Rows(on=(0, 0.5)),
        ArgumentError,
        "Rows: on= must be whole numbers such as (0, 1), got (0, 0.5)",
    ),
    "workers in a text": (
        lambda p: md.dmath.Columns(on="01"),
        ArgumentError,
        "Columns: on= must be whole numbers such as (0, 1), got '01'",
    ),
    "a worker in place of several": (
        lambda p: md.dmath.Replicated(on=1),
        ArgumentError,
        "Replicated: on= must be whole numbers such as (0, 1), got 1",
    ),
    "sizes that are true": (
        lambda p: Rows(sizes=(True, 3)),
        ArgumentError,
        "Rows: sizes= must be whole numbers such as (0, 1), got (True, 3)",
    ),
    "two copies on a worker": (
        lambda p: md.dmath.Replicated(on=(2, 0, 2)),
        ArgumentError,
        "Replicated: on= names worker 2 twice, and it has one copy; got [2, 0, 2]",
    ),
    "a layout of other workers": (
        made(resolve(Rows(), (4, 4), 3)),
        ArgumentError,
        "full: a layout of 3 workers is of another worker set, this one has 1",
    ),
    "a layout of another shape": (
        made(resolve(Rows(), (5, 4), 1)),
        ShapeError,
        "full: a layout of shape (5, 4) does not fit shape (4, 4)",
    ),
    "a worker that is not there": (
        made(Rows(on=(0, 3))),
        ArgumentError,
        "Rows: owner 3 names no worker, there are 1: give numbers from 0 to 0",
    ),
    "an owner below 0": (
        made(Blocks((2, 2), owners=[[0, -1], [0, 0]])),
        ArgumentError,
        "Blocks: owner -1 names no worker, there are 1: give numbers from 0 to 0",
    ),
    "owners by cycles of too many workers": (
        made(Blocks((2, 2), owners=md.dmath.cyclic(2, 2))),
        ArgumentError,
        "Blocks: owner 1 names no worker, there are 1: give numbers from 0 to 0",
    ),
    "a cycle of no workers": (
        lambda p: md.dmath.cyclic(0, 2),
        ArgumentError,
        "cyclic: numbers of workers must be at least 1, got 0",
    ),
    "rows that do not cover": (
        made(Rows(sizes=(3,))),
        ShapeError,
        "Rows: sizes [3] of 1 workers do not cover axis 0 of size 4",
    ),
    "copies on a worker that is not there": (
        lambda p: square().replica(on=(2,)),
        ArgumentError,
        "Replicated: owner 2 names no worker, there are 1: give numbers from 0 to 0",
    ),
    "a change to a layout of other workers": (
        lambda p: square().to(resolve(Rows(), (4, 4), 3)),
        ArgumentError,
        "remap: a layout of 3 workers is of another worker set, this one has 1",
    ),
    "a product in a layout of other workers": (
        lambda p: md.dmath.matmul(square(), square(), layout=resolve(Rows(), (4, 4), 3)),
        ArgumentError,
        "matmul: a layout of 3 workers is of another worker set, this one has 1",
    ),
    "no layout": (
        made("rows"),
        ArgumentError,
        "full: expected a layout such as md.dmath.Rows() or \"auto\", got 'rows'",
    ),
    "shapes of a product": (
        lambda p: square() @ w().ones((3, 2)),
        ShapeError,
        "matmul: axis k is 4 in a (4, 4) but 3 in b (3, 2)",
    ),
    "shapes that do not broadcast": (
        lambda p: square() + w().ones(3),
        ShapeError,
        (
            "add: shapes (4, 4) and (3,) do not broadcast: sizes of an axis, from the last, are equal "
            "or 1"
        ),
    ),
    "a product by a number": (
        lambda p: square() @ 2,
        ShapeError,
        "matmul: operands are matrices or vectors, got 2: multiply numbers with *",
    ),
    "a shape in place": (
        lambda p: w().ones(4).__iadd__(square()),  # type: ignore[attr-defined]  # put on by name
        ShapeError,
        "add: in place, a result of shape (4, 4) does not fit (4,)",
    ),
    "rows of different lengths": (
        lambda p: w().array([[1, 2], [3]]),
        ShapeError,
        "array: rows of values differ in length: an array has as many in each",
    ),
    "a size below 0": (
        lambda p: w().ones((3, -1)),
        ShapeError,
        "full: sizes of a shape are whole numbers from 0, got (3, -1)",
    ),
    "a value that does not fit an index": (
        lambda p: square().__setitem__(slice(0, 2), np.ones(3)),
        ShapeError,
        "assign: a value of shape (3,) does not fit the indexed part, (2, 4)",
    ),
    "an index that is not there": (
        lambda p: square()[7],
        IndexOutOfRangeError,
        "index: index 7 is beyond axis 0 of size 4",
    ),
    "an axis that is not there": (
        lambda p: square().sum(axis=5),
        IndexOutOfRangeError,
        "sum: axis 5 is not there, the array has 2 axes",
    ),
    "a dtype": (
        lambda p: w().ones(3, dtype="flaot32"),
        DTypeError,
        "~dtype 'flaot32' is not known: did you mean 'float32'.*",
    ),
    "a dtype in place": (
        lambda p: w().array(np.arange(3)).__iadd__(0.5),  # type: ignore[attr-defined]
        DTypeError,
        "add: in place, a result of float64 does not go into int64: write x = x op y",
    ),
    "text as an operand": (
        lambda p: square() + "text",
        DTypeError,
        "add: expected an array of these workers or a number, got 'text'",
    ),
    "no array on workers": (
        lambda p: md.dmath.sum([1.0]),
        DTypeError,
        "sum: expected an array on workers, such as w.array(...) makes, got [1.0]",
    ),
    "an array of text": (
        lambda p: w().array(["a"]),
        DTypeError,
        "~dtype 'str32' is not known: known are .*",
    ),
    "a device of a session": (
        lambda p: md.dmath.distributed(w(), device="tpu"),
        ArgumentError,
        'device: expected "cpu" or "cuda", got \'tpu\'',
    ),
    "a device of an array": (
        lambda p: w().arange(3, device="cuda"),
        ArgumentError,
        (
            "arange: these workers compute on 'cpu', got device='cuda': "
            "md.dmath.distributed(w, device=...) makes a session on another"
        ),
    ),
    "another device": (
        lambda p: square().to_device("cuda"),
        ArgumentError,
        (
            "to_device: these workers compute on 'cpu', got 'cuda': send the values to others, "
            "w.array(np.asarray(x))"
        ),
    ),
    "bits that do not depend": (
        lambda p: md.dmath.distributed(w(), deterministic="yes"),
        ArgumentError,
        "deterministic: expected \"layout\" or None, got 'yes'",
    ),
    "sums in an order that is neither": (
        lambda p: md.dmath.add_row_col_sum(w().ones(4), square(), deterministic="layout"),
        ArgumentError,
        "add_row_col_sum: deterministic must be True or False, got 'layout'",
    ),
    "sums in any order where none is": (
        lambda p: (lambda s: s.add_row_col_sum(s.ones(4), s.ones((4, 4)), deterministic=False))(
            md.dmath.distributed(w(), deterministic="layout")
        ),
        ArgumentError,
        (
            'add_row_col_sum: deterministic=False in a session of deterministic="layout", whose sums have '
            "the same bits for all layouts: leave it out, or make the session without"
        ),
    ),
    "values inside explain": (
        lambda p: w().explain(lambda: float(square().sum())),
        ArgumentError,
        "explain: values are asked for inside it, and nothing is computed there",
    ),
    "a function of other dtypes": (
        lambda p: square() & square(),
        DTypeError,
        "bitwise_and: takes no operands of float64, float64: cast them with astype",
    ),
    "an arithmetic": (
        lambda p: md.dmath.matmul(square(), square(), compute="int8"),
        UnknownNameError,
        "~matmul: compute 'int8' is not known: known are bfloat16, float16, float32, float64, tf32",
    ),
    "a wire that does more than round": (
        lambda p: md.dmath.matmul(square(), square(), wire="int32"),
        DTypeError,
        (
            "matmul: wire='int32' rounds floating-point numbers on their way, got float64: leave wire "
            "out, or give float32, bfloat16 or float16"
        ),
    ),
    "no memory": (
        lambda p: np.asarray(w().ones((1 << 22, 1 << 22))),
        OutOfMemoryError,
        (
            r"~full: worker 0 has no memory for its 131072.00 GiB of an array of shape \(4194304, "
            r"4194304\): spread it over more workers, or take a smaller dtype \(line .*:\d+\)"
        ),
    ),
    "an array of other workers": (
        lambda p: square() + md.workers.Workers(0).ones((4, 4)),
        ArgumentError,
        "add: an operand is of another set of workers: gather it with np.asarray first",
    ),
    "an array of closed workers": (
        lambda p: closed()[1] + 1,
        ArgumentError,
        "workers: they are closed: use arrays inside `with md.workers(...)`, or start others",
    ),
    "values of closed workers": (
        lambda p: np.asarray(closed()[1]),
        ArgumentError,
        "workers: they are closed: use arrays inside `with md.workers(...)`, or start others",
    ),
    "counters of closed workers": (
        lambda p: closed()[0].counters(),
        CommunicationError,
        "workers: they are closed: call restart() or make new ones",
    ),
    "closed workers": (
        lambda p: closed()[0].ones(3),
        CommunicationError,
        "workers: they are closed: call restart() or make new ones",
    ),
    "NumPy's functions": (
        lambda p: np.dot(square(), square()),  # type: ignore[call-overload]
        ArgumentError,
        "np.dot: gathers nothing by itself: write md.dmath.dot or np.asarray(x) first",
    ),
}


@pytest.mark.parametrize("name", PYTHON)
def test_a_mistake_in_python(name: str, place: Path) -> None:
    check_in_python(place, PYTHON[name])


@pytest.mark.skipif(device_count() > 0, reason="there is a GPU")
def test_workers_beyond_gpus(place: Path) -> None:
    case = (
        lambda p: md.dmath.distributed(w(), device="cuda"),
        DeviceError,
        "~device 0 cannot be used: .*",
    )
    check_in_python(place, case)
