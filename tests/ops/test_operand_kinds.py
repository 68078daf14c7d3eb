"""Every op on every dtype: arrays, numbers, lists, Tensors, Operations give NumPy's result, or our errors."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn import ops
from magmadnn.errors import MagmaDNNError
from magmadnn.graph.op import OpKind
from magmadnn.memory.dtypes import BFLOAT16, DTYPES
from magmadnn.runtime import Executable
from tests.ops.contract_cases import BUILT_IN, Array

NUMBERS = (True, 0, 2, -1, 300, 0.5, float("inf"), float("nan"), 10**30, 10**400)
POINTWISE = [o for o in BUILT_IN.values() if o.kind is OpKind.POINTWISE and not o.attributes]
# what NumPy has under the same name, but in another dtype: reciprocals of integers are 0 or 1 there
OTHERWISE = {"reciprocal", "square"}
Result = tuple[str, Any]


def values(dtype: str) -> Array:
    return np.array([[1, 0, 3], [2, 5, 1]]).astype(DTYPES[dtype])


def outcome(function: Callable[..., Any], *operands: Any) -> Result:
    """The dtype and the elements of a result, or that the call is refused with an error of ours."""
    try:
        made = function(*operands)
        if isinstance(made, md.Operation):  # negative powers, say, are known when it runs
            (made,) = Executable([made.node]).run({})
    except MagmaDNNError as error:
        assert len(str(error).splitlines()) == 1
        return "refused", None
    array = np.asarray(made)
    return array.dtype.name, array.astype(np.float64).round(6)


def numpys(name: str, *operands: Any) -> Result | None:
    """The same of NumPy; None where it has no such function, refuses, or its dtype is none of ours."""
    if not hasattr(np, name) or any(getattr(x, "dtype", None) == BFLOAT16 for x in operands):
        return None
    try:
        with np.errstate(all="ignore"):
            array = np.asarray(getattr(np, name)(*operands))
    except (TypeError, ValueError, OverflowError):
        return None
    known = array.dtype in DTYPES.values()
    return (array.dtype.name, array.astype(np.float64).round(6)) if known else None


def alike(one: Result, other: Result) -> bool:
    return one[0] == other[0] and (
        one[1] is None or np.array_equal(one[1], other[1], equal_nan=True)
    )


def operands_with_numbers(count: int) -> Iterator[tuple[Any, ...]]:
    """Arrays of all dtypes with each number at each place."""
    for dtype, number in itertools.product(DTYPES, NUMBERS):
        for place in range(count):
            yield tuple(number if k == place else values(dtype) for k in range(count))


@pytest.mark.parametrize("op", POINTWISE, ids=lambda op: op.name)
def test_numbers_beside_arrays(op: Any) -> None:
    """What is given is NumPy's, dtype and all; what is refused is refused with words."""
    compared = 0
    for operands in operands_with_numbers(len(op.args)):
        ours, wanted = outcome(op, *operands), numpys(op.name, *operands)
        if wanted is None or ours[0] == "refused" or op.name in OTHERWISE:
            continue
        shown = [x if isinstance(x, (bool, int, float)) else x.dtype.name for x in operands]
        assert ours[0] == wanted[0], shown
        np.testing.assert_allclose(ours[1], wanted[1], rtol=2e-3, err_msg=str(shown))
        compared += 1
    assert compared or not hasattr(np, op.name) or op.name in OTHERWISE


def kinds(dtype: str) -> list[Any]:
    array = values(dtype)
    return [
        array,
        md.asarray(array),
        md.variable("v", array),
        ops.reshape(md.variable("w", array), (2, 3)),
    ]


@pytest.mark.parametrize("op", POINTWISE, ids=lambda op: op.name)
def test_arrays_tensors_and_operations_give_the_same(op: Any) -> None:
    pairs = list(itertools.product(DTYPES, repeat=min(len(op.args), 2)))
    for number, dtypes in enumerate(pairs):
        chosen = [*dtypes, dtypes[-1]][: len(op.args)]
        wanted = outcome(op, *map(values, chosen))
        for kind in (1, 2 + number % 2):
            mixed = [
                kinds(d)[kind if k == number % len(chosen) else 0] for k, d in enumerate(chosen)
            ]
            assert alike(outcome(op, *mixed), wanted), (chosen, kind)


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    **{n: getattr(ops, n) for n in "sum prod max min mean var std norm logsumexp argmax argmin softmax "
       "log_softmax flatten transpose squeeze unstack".split()},
    "cumsum": lambda x: ops.cumsum(x, 0), "clip": lambda x: ops.clip(x, 1, 2),
    "clip above": lambda x: ops.clip(x, None, True), "clip beyond": lambda x: ops.clip(x, -1, 300),
    "matmul": lambda x: ops.matmul(x, ops.transpose(x)),
    "einsum": lambda x: ops.einsum("ab,ab->a", x, x), "linear": lambda x: ops.linear(x, np.ones((3, 2))),
    "take": lambda x: ops.take(np.arange(6.0), x), "one_hot": lambda x: ops.one_hot(x, 6),
    "embedding": lambda x: ops.embedding(np.ones((6, 2)), x),
    "scatter_add": lambda x: ops.scatter_add(x, [0, 1], count=3),
    "take_class": lambda x: ops.take_class(x, [0, 2]), "split": lambda x: ops.split(x, 3, 1),
    "concat": lambda x: ops.concat([x, x]), "stack": lambda x: ops.stack([x, x]),
    **{f"pad {v}": lambda x, v=v: ops.pad(x, ((1, 0), (0, 1)), v) for v in NUMBERS},
    "tile": lambda x: ops.tile(x, (2, 1)), "flip": lambda x: ops.flip(x, 0),
    "dropout": lambda x: ops.dropout(x, 0.5, np.int64(1), seed=1), "index": lambda x: x[:, 1],
    "prelu": lambda x: ops.prelu(x, 0.5), "divide": lambda x: x / 2, "power": lambda x: x**2,
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_take_any_dtype_or_say_why_not(name: str) -> None:
    for dtype in DTYPES:
        array, *others = kinds(dtype)
        listed = (
            [array.tolist()]
            if dtype == "int64" and name not in ("index", "divide", "power")
            else []
        )
        results = [_all(FUNCTIONS[name], x) for x in (array, *others, *listed)]
        if name in ("divide", "power"):  # an array's operators are NumPy's
            results = results[1:]
        for result in results:
            assert len(result) == len(results[0]), dtype
            assert all(map(alike, result, results[0])), dtype


def _all(function: Callable[[Any], Any], x: Any) -> list[Result]:
    """The outcome of a function, or of each of a list that it gives."""
    try:
        made = function(x)
    except MagmaDNNError:
        return [("refused", None)]
    parts = made if isinstance(made, list) else [made]
    return [outcome(lambda part=part: part) for part in parts]


def test_a_condition_has_no_say_in_the_dtype() -> None:
    for condition in (np.float16([1, 0]), np.int64([1, 0]), ops.cast(np.ones(2), "bfloat16")):
        assert ops.where(condition, np.int8([1, 2]), 7).dtype == np.int8
        assert ops.where(condition, np.float32([1, 2]), 0.1).dtype == np.float32
        assert ops.where(condition, ops.cast(np.ones(2), "bfloat16"), 0).dtype == BFLOAT16
        with pytest.raises(MagmaDNNError, match="300 does not fit into int8"):
            ops.where(condition, np.int8([1, 2]), 300)
