"""Sizes that are odd (0 and 1), and sizes that are not known while the graph is built."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

from magmadnn import ops
from magmadnn.errors import ShapeError
from magmadnn.graph import Dim, Node, NoGradient, Spec
from magmadnn.graph.node import placeholder
from magmadnn.graph.op import Op, OpKind
from magmadnn.graph.transforms.gradient import gradient
from magmadnn.runtime import Executable
from tests.ops.contract_cases import BUILT_IN, Array, Case, Drawing, assert_matches, bits

B = "batch"
SIZES = (1, 5, 7)
every_op = pytest.mark.parametrize("op", BUILT_IN.values(), ids=BUILT_IN)


class Sizes(NamedTuple):
    """Operands by shape, with `B` where the size is not known; integers where `high` is given."""

    shapes: tuple[tuple[Any, ...], ...]
    attributes: dict[str, Any] = {}  # noqa: RUF012  never changed
    high: int = 0  # of the last operand


def dim(size: Any) -> Any:
    return Dim.symbol(B) if size == B else size


BATCH = Dim.symbol(B)
ROWS = placeholder("rows", Spec((BATCH,), np.dtype(np.float64)))  # where no operand has the batch
SLICES = (("slice", 1, None, 1), ("slice", -2, None, 1), ("slice", None, -1, 1))

PICTURES = {"size": (2, 2), "strides": (2, 2), "padding": ((0, 0), (1, 1))}
GATHERED = {"strides": (2, 3), "padding": ((1, 0), (1, 1)), "channels": 16, "beside": 1}
BESIDE = {"strides": (1, 2), "padding": ((0, 0), (1, 1)), "channels": 8, "beside": 2}
POOLING = {"size": (2,), "strides": (2,), "padding": ((0, 0),)}
CONVOLUTION = {"strides": (2,), "padding": ((1, 0),), "dilation": (1,), "groups": 1}
OF_MODELS = {**CONVOLUTION, "algorithm": "auto", "way": "calls"}


POOLED = {"padding": ((1, 1), (0, 1)), "size": (2, 2)}


def pooled(n: Any) -> dict[str, list[Sizes]]:
    """Convolutions of n images whose results are pooled."""
    x, w, y = (n, 4, 6, 3), (3, 2, 3, 2), (n, 2, 3, 2)
    told, parts = {"positive": True, **POOLED}, {"filters": (3, 2), "parts": 3, **POOLED}
    return {
        "_convolution_pooled": [Sizes((x, w, (2,)), told)],
        "_convolution_pooled_numbers": [Sizes((x, w, (2,)), told)],
        "_convolution_pooled_inputs": [Sizes((y, y, w), {"places": (4, 6), **POOLED})],
        "_convolution_pooled_filters": [Sizes((x, y, y), parts, 4)],
    }


def of_models(n: Any) -> dict[str, list[Sizes]]:
    """Convolutions of three models, of n images each."""
    x, w, y, turned = (3, n, 6, 4), (3, 3, 4, 2), (3, n, 3, 2), (3, 2, 3, 4)
    return {
        "_convolutions": [Sizes((x, w), OF_MODELS)],
        "_convolutions_inputs": [Sizes((y, w), {"places": (6,), **OF_MODELS})],
        "_convolutions_filters": [Sizes((x, y), {"size": (3,), **OF_MODELS})],
        "_convolutions_whole": [Sizes((x, turned), CONVOLUTION)],
        "_convolutions_biased": [Sizes((x, turned, (3, 2)), {**CONVOLUTION, "positive": True})],
        "_convolutions_added": [Sizes((x, turned, (3, 2), y), {**CONVOLUTION, "positive": False})],
        "_convolutions_inputs_whole": [Sizes((y, turned), {"places": (6,), **CONVOLUTION})],
        "_convolutions_filters_whole": [Sizes((x, y), {"size": (3,), **CONVOLUTION})],
    }


UNKNOWN: dict[str, list[Sizes]] = {
    "reshape": [
        Sizes(((B, 6),), {"shape": (-1, 3, 2)}),
        Sizes(((B, 6),), {"shape": (BATCH * 2, 3)}),
        Sizes(((6, B),), {"shape": (2, 3, BATCH)}),
    ],
    "_copy": [Sizes(((B, 3),)), Sizes(((3, B),))],
    "_after": [Sizes(((B, 3), ())), Sizes(((3, B), ()))],
    "_checkpoint": [Sizes(((B, 3), (B, 2), (5,)), {"inputs": 1})],
    "transpose": [Sizes(((B, 3, 2),)), Sizes(((B, 3, 2),), {"axes": (1, 0, 2)})],
    "broadcast_to": [
        Sizes(((3,),), {"shape": (BATCH, 3)}),
        Sizes(((1, 3),), {"shape": (2, BATCH, 3)}),
        Sizes(((),), {"shape": (BATCH,)}),
    ],
    "concat": [
        Sizes(((B, 3), (B, 2)), {"axis": 1}),
        Sizes(((2, 3), (B, 3), (B, 3))),
        Sizes(((B, 3), (1, 3))),
    ],
    "_slice": [
        *(Sizes(((B, 3),), {"index": (entry,)}) for entry in SLICES[::2]),
        Sizes(((B, 3),), {"index": (("int", -1),)}),
        Sizes(((B, 3),), {"index": (("int", 0), ("slice", 0, 2, 1))}),
        Sizes(((B, 3),), {"index": (("slice", None, None, -1),)}),
        Sizes(((B, 3),), {"index": (("slice", -1, None, 1),)}),
        Sizes(((3, B),), {"index": (("slice", 2, None, -2),)}),
    ],
    "_unslice": [
        Sizes(((B, 2),), {"index": (("slice", None, None, 1), ("slice", 1, 3, 1)), "shape": (BATCH, 4)}),
    ],
    "pad": [Sizes(((B, 3),), {"widths": ((1, 2), (0, 1)), "value": 0.5})],
    "matmul": [
        Sizes(((B, 5), (5, 3))), Sizes(((2, B, 5), (5, 3))), Sizes(((B, 2, 5), (B, 5, 3))),
        Sizes(((5, B), (B, 3))), Sizes(((B,), (B,))), Sizes(((B, 5), (5,))), Sizes(((B,), (B, 3))),
        Sizes(((B, 1, 2, 5), (3, 5, 2))), Sizes(((B, 2, 5), (5, 3))),
    ],
    "_einsum": [
        Sizes(((B, 5), (5, 3)), {"subscripts": "bi,ij->bj"}),
        Sizes(((B, 5), (B, 3)), {"subscripts": "bi,bj->ij"}),
        Sizes(((B, 2, 5),), {"subscripts": "...i->..."}),
        Sizes(((B, 5),), {"subscripts": "bi->i"}),
    ],
    "take": [
        Sizes(((5, 3), (B,)), {}, 5), Sizes(((5, 3), (B, 2)), {"axis": 0}, 5),
        Sizes(((B, 5), (4,)), {"axis": 1}, 5), Sizes(((B, 3), (2,)), {}, 1),
    ],
    "scatter_add": [
        Sizes(((B, 3), (B,)), {"count": 5}, 5), Sizes(((3, 2), (3,)), {"count": BATCH}, 1),
        Sizes(((B, 3), (3,)), {"axis": 1, "count": 5}, 5),
    ],
    "one_hot": [Sizes(((B,),), {"depth": 5}, 5), Sizes(((3,),), {"depth": BATCH}, 1)],
    "take_class": [Sizes(((B, 5), (B,)), {}, 5), Sizes(((B, 2, 5), (2,)), {}, 5)],
    "cumsum": [Sizes(((B, 3),), {"axis": 0}), Sizes(((B, 3),), {"axis": -1})],
    "cholesky": [Sizes(((B, 3, 3),)), Sizes(((B, B),)), Sizes(((2, B, B),))],
    "solve_triangular": [
        Sizes(((B, B), (B, 3)), {"lower": True}), Sizes(((3, 3), (B, 3, 2)), {"lower": False}),
        Sizes(((B, 3, 3), (3, B)), {"lower": True, "transpose": True}),
    ],
    "_recurrence": [Sizes(((B, 3), (B, 3))), Sizes(((3, B), (3, B)), {"reverse": True})],
    "convolution": [
        Sizes(((B, 5, 4, 2), (3, 2, 2, 3)), {"strides": (1, 2), "padding": "same"}),
        Sizes(((2, B, 2), (3, 2, 3)), {"padding": 2}),
        Sizes(((2, B, 2), (2, 2, 3)), {"strides": 2, "padding": 1}),
        Sizes(((B, 5, 2), (3, 1, 2)), {"groups": 2}),
    ],
    "_convolution_inputs": [Sizes(((B, 3, 2), (3, 4, 2)), {"places": (6,), **CONVOLUTION})],
    "_convolution_filters": [Sizes(((B, 6, 4), (B, 3, 2)), {"size": (3,), **CONVOLUTION})],
    "_interleave": [
        Sizes(((B, 3, 2), (B, 2, 2)), {"places": (5,), "strides": (2,), "phases": ((0,), (1,))}),
        Sizes(((3, 2, B),), {"places": (4,), "strides": (2,), "phases": ((0,),)}),
    ],
    "_frequencies": [Sizes(((B, 5, 2),), {"lengths": (6,)})],
    "_from_frequencies": [Sizes(((4, B, 6),), {"lengths": (6,)})],
    **of_models(B),
    **pooled(B),
    "_convolution_whole": [Sizes(((B, 6, 4), (2, 3, 4)), CONVOLUTION)],
    "_convolution_biased": [Sizes(((B, 6, 4), (2, 3, 4), (2,)), {**CONVOLUTION, "positive": True})],
    "_convolution_added": [
        Sizes(((B, 6, 4), (2, 3, 4), (2,), (B, 3, 2)), {**CONVOLUTION, "positive": False})
    ],
    "_convolution_inputs_whole": [Sizes(((B, 3, 2), (2, 3, 4)), {"places": (6,), **CONVOLUTION})],
    "_convolution_filters_whole": [Sizes(((B, 6, 4), (B, 3, 2)), {"size": (3,), **CONVOLUTION})],
    "_windows": [
        Sizes(((B, 6, 2),), {"size": (3,), "strides": (2,), "dilation": (1,)}),
        Sizes(((2, B, 2),), {"size": (2,), "strides": (1,), "dilation": (1,)}),
    ],
    "max_pooling": [
        Sizes(((B, 5, 4, 2),), {"size": (2, 3), "strides": (2, 1), "padding": 1}),
        Sizes(((2, B, 2),), {"size": 2, "strides": 2, "padding": 1}),
        Sizes(((2, B, B, 2),), {"size": 3, "strides": 1, "padding": "same"}),
    ],
    "max_pooling_indices": [Sizes(((B, 5, 2),), {"size": 2}), Sizes(((2, B, 2),), {"size": 3, "padding": 1})],
    "_max_pooling_inputs": [
        Sizes(((B, 2, 3), (B, 2, 3)), {"places": (5,), **POOLING}, 2),
        Sizes(((2, B, 3), (2, B, 3)), {"places": (2 * BATCH,), **POOLING}, 2),
    ],
    "_gathered_whole": [Sizes(((B, 5, 4, 2),), GATHERED), Sizes(((B, 3, 4, 2),), BESIDE)],
    "_max_pooling_whole": [Sizes(((B, 5, 4, 2),), PICTURES)],
    "_max_pooling_indices_whole": [Sizes(((B, 5, 4, 2),), PICTURES)],
    "_max_pooling_inputs_whole": [
        Sizes(((B, 2, 3, 3), (B, 2, 3, 3)), {"places": (5, 4), **PICTURES}, 2)
    ],
    "_max_pooling_positive_inputs_whole": [
        Sizes(((B, 2, 3, 3), (B, 2, 3, 3), (B, 2, 3, 3)), {"places": (5, 4), **PICTURES}, 2)
    ],
    "_max_pooling_chosen": [
        Sizes(((B, 5, 3), (B, 2, 3)), POOLING, 2),
    ],
    "average_pooling": [
        Sizes(((B, 5, 4, 2),), {"size": (2, 3), "strides": (2, 1), "padding": 1}),
        Sizes(((2, B, 2),), {"size": 2, "strides": 2, "padding": 1, "count_padding": True}),
        Sizes(((2, B, 2),), {"size": 3, "strides": 2, "padding": 1}),
        Sizes(((2, B, B, 2),), {"size": (2, 3), "strides": 1, "padding": "same"}),
    ],
    "_average_pooling_inputs": [
        Sizes(((B, 2, 3),), {"places": (5,), **POOLING, "count_padding": False}),
        Sizes(((2, B, 3),), {"places": (2 * BATCH,), **POOLING, "count_padding": True}),
    ],
    "softmax": [Sizes(((B, 3),)), Sizes(((B, 3),), {"axis": 0})],
    "log_softmax": [Sizes(((B, 3),)), Sizes(((B, 3),), {"axis": 0})],
    "random_uniform": [],  # its shape is no operand: tested below
}  # fmt: skip


def unknown_sizes(op: Op) -> list[Sizes]:
    """Operands of unknown size for an op: by its kind, or as the table says."""
    if op.name in UNKNOWN:
        return UNKNOWN[op.name]
    if op.kind is OpKind.REDUCTION:
        return [
            Sizes(((B, 3),), a)
            for a in ({}, {"axis": 0}, {"axis": 1}, {"axis": 0, "keepdims": True})
        ]
    assert op.kind is OpKind.POINTWISE, f"{op.name} needs a row in UNKNOWN"
    if len(op.args) == 1:
        return [Sizes(((B, 3),)), Sizes(((2, B),)), Sizes(((B,),))]
    front, back = ((B, 3),) * (len(op.args) - 2), ((3,), (B, 3))
    return [
        Sizes((*front, *back)),
        Sizes((*front, *reversed(back))),
        Sizes((*front, (2, B, 1), (B, 3))),
        Sizes((*front, (1, 3), (B, 1))),
        Sizes((*front, (), (B,))) if not front else Sizes((*front, (), (3,))),
    ]


def drawn(op: Op, sizes: Sizes, batch: int) -> list[Array]:
    draw = Drawing(batch)
    arrays = [draw.positive(*(batch if n == B else n for n in shape)) for shape in sizes.shapes]
    if sizes.high:
        arrays[-1] = draw.integers(*arrays[-1].shape, low=0, high=sizes.high)
    if op.name == "where":
        arrays[0] = draw(*arrays[0].shape) > 0
    if op.name in ("cholesky", "solve_triangular"):  # positive definite; well conditioned triangles
        n = arrays[0].shape[-1]
        arrays[0] = 0.1 * arrays[0] + n * np.eye(n)
    return arrays


def bound(value: Any, batch: int) -> Any:
    """An attribute with the size put in."""
    if isinstance(value, Dim):
        return value.bind({B: batch})
    return tuple(bound(v, batch) for v in value) if isinstance(value, tuple) else value


@every_op
def test_sizes_unknown_while_the_graph_is_built(op: Op, checked: Callable[[int], None]) -> None:
    for sizes in unknown_sizes(op):
        first = drawn(op, sizes, 1)
        inputs = [
            placeholder(f"x{i}", Spec(tuple(map(dim, shape)), x.dtype))
            for i, (shape, x) in enumerate(zip(sizes.shapes, first, strict=True))
        ]
        node = Case(op, [], {}).op(*Case(op, [], {}).listed(list(inputs)), **sizes.attributes)
        real = [x for x in inputs if x.dtype == np.float64]
        found = slopes(op, node, real)
        run = Executable([node, *found], check=True)
        compiled = Executable([node, *found], executor="native", check=True)
        for batch in SIZES:
            arrays = drawn(op, sizes, batch)
            attributes = {k: bound(v, batch) for k, v in sizes.attributes.items()}
            fed = {ROWS: np.zeros(batch), **dict(zip(inputs, arrays, strict=True))}
            result, *values = run.run(fed)
            case = Case(op, arrays, attributes)
            if op.at_once is None:
                assert bits(result) == bits(case.run()), (case, batch)
            else:  # computed by a library, which rounds otherwise than NumPy
                np.testing.assert_allclose(result, case.run(), rtol=1e-12, atol=1e-14)
            for got, expected in zip(values, known_slopes(case), strict=True):
                # reductions over a broadcast axis may add up in another order
                np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-12, err_msg=str(case))
            for got, expected in zip(compiled.run(fed), [result, *values], strict=True):
                np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-12, err_msg=str(case))
            checked(2 + 2 * len(values))


def slopes(op: Op, node: Node, real: list[Node]) -> list[Node]:
    """The gradients of sum(node**2) for the real operands, if there are any."""
    if isinstance(op.vjp, NoGradient) or node.dtype != np.float64 or not real:
        return []
    return gradient((node * node).sum(), real)


def known_slopes(case: Case) -> list[Array]:
    """The same with all sizes known."""
    inputs = [placeholder(f"x{i}", Spec(x.shape, x.dtype)) for i, x in enumerate(case.operands)]
    node = case.op(*case.listed(list(inputs)), **case.attributes)
    found = slopes(case.op, node, [x for x in inputs if x.dtype == np.float64])
    return Executable(found, check=True).run(dict(zip(inputs, case.operands, strict=True)))


def test_random_numbers_of_unknown_size() -> None:
    x = placeholder("x", Spec((BATCH, 3), np.dtype(np.float32)))
    drawn_node = ops.random_uniform(np.int64(5), x.shape, seed=3)  # a graph: the size is not known
    kept = ops.dropout(x, 0.5, np.int64(5), seed=3)
    run = Executable([drawn_node, kept, *gradient(kept.sum(), [x])], check=True)
    for batch in SIZES:
        ones = np.ones((batch, 3), np.float32)
        numbers, values, slope = run.run({x: ones})
        assert bits(numbers) == bits(ops.random_uniform(np.int64(5), (batch, 3), seed=3))
        assert bits(values) == bits(slope) == bits(2 * (numbers >= 0.5).astype(np.float32))


TOO_SMALL = [  # index, batch, the size that comes out
    (slice(-3, None), 2, "batch - 3", -1),
    (slice(3, None), 2, "batch - 3", -1),
    (slice(None, -3), 1, "batch - 3", -2),
    (-2, 1, "batch - 2", -1),
]


@pytest.mark.parametrize(("index", "batch", "size", "value"), TOO_SMALL, ids=str)
def test_a_batch_that_is_too_small_for_a_slice(
    index: Any, batch: int, size: str, value: int
) -> None:
    x = placeholder("x", Spec((BATCH, 3), np.dtype(np.float64)))
    run = Executable([x[index]], check=True)
    for enough in (3, 4):
        array = np.arange(3.0 * enough).reshape(enough, 3)
        assert np.array_equal(run.run({x: array})[0], array[index])
    expected = f"the size {size} would be {value} with batch = {batch}; feed a larger one"
    for checked in (run, Executable([ops.sum(x[index])])):
        with pytest.raises(ShapeError) as info:
            checked.run({x: np.ones((batch, 3))})
        assert str(info.value) == expected


# --- sizes 0 and 1 --------------------------------------------------------------------------------

NO_EXTREME = "axis {} of x {} is empty, so there is nothing to choose from"
EMPTY: dict[str, list[Sizes]] = {
    "reshape": [Sizes(((0, 6),), {"shape": (3, 0)}), Sizes(((0, 6),), {"shape": (-1, 2)})],
    "_copy": [Sizes(((0, 3),)), Sizes(((),)), Sizes(((1,),))],
    "_after": [Sizes(((0, 3), ())), Sizes(((), ())), Sizes(((1,), ()))],
    "_checkpoint": [Sizes(((0, 3), (0, 3)), {"inputs": 1}), Sizes(((), ()), {"inputs": 1})],
    "transpose": [Sizes(((0, 3),)), Sizes(((),)), Sizes(((1, 1),))],
    "broadcast_to": [Sizes(((1, 3),), {"shape": (0, 3)}), Sizes(((),), {"shape": (0,)})],
    "concat": [Sizes(((0, 3), (2, 3))), Sizes(((0, 3),)), Sizes(((1, 1), (1, 1)))],
    "_slice": [
        Sizes(((0, 3),), {"index": (("slice", None, None, -1),)}),
        Sizes(((5,),), {"index": (("slice", 3, 1, 1),)}),
        Sizes(((1,),), {"index": (("int", -1),)}),
        Sizes(((),), {"index": ()}),
    ],
    "_unslice": [
        Sizes(((0,),), {"index": (("slice", 0, 0, 1),), "shape": (3,)}),
        Sizes(((),), {"index": (("int", 0),), "shape": (1,)}),
    ],
    "pad": [Sizes(((0,),), {"widths": ((1, 2),)}), Sizes(((),), {"widths": ()})],
    "matmul": [
        Sizes(((0, 5), (5, 3))), Sizes(((2, 0), (0, 3))), Sizes(((0,), (0,))), Sizes(((1, 1), (1, 1))),
        Sizes(((0, 2, 5), (5, 3))), Sizes(((1,), (1,))),
    ],
    "_einsum": [
        Sizes(((0, 5), (5, 3)), {"subscripts": "ij,jk->ik"}),
        Sizes(((2, 0), (0, 3)), {"subscripts": "ij,jk->ik"}),
        Sizes(((), (3,)), {"subscripts": ",i->i"}),
    ],
    "convolution": [
        Sizes(((0, 5, 2), (3, 2, 3)), {"padding": "same"}), Sizes(((1, 1, 1), (1, 1, 1))),
        Sizes(((2, 5, 2), (3, 2, 0))), Sizes(((2, 5, 0), (3, 0, 2))),
    ],
    "_convolution_inputs": [
        Sizes(((0, 3, 2), (3, 4, 2)), {"places": (6,), **CONVOLUTION}),
        Sizes(((2, 3, 0), (3, 4, 0)), {"places": (6,), **CONVOLUTION}),
    ],
    "_convolution_filters": [
        Sizes(((0, 6, 4), (0, 3, 2)), {"size": (3,), **CONVOLUTION}),
        Sizes(((2, 6, 0), (2, 3, 2)), {"size": (3,), **CONVOLUTION}),
    ],
    "_interleave": [
        Sizes(((0, 3, 2),), {"places": (5,), "strides": (2,), "phases": ((0,),)}),
        Sizes(((1, 1, 1),), {"places": (1,), "strides": (2,), "phases": ((0,),)}),
    ],
    "_frequencies": [
        Sizes(((0, 5, 2),), {"lengths": (6,)}), Sizes(((1, 1, 1),), {"lengths": (1,)}),
    ],
    "_from_frequencies": [
        Sizes(((4, 0, 6),), {"lengths": (6,)}), Sizes(((1, 1, 2),), {"lengths": (1,)}),
    ],
    **of_models(0),
    **pooled(0),
    "_convolution_whole": [Sizes(((0, 6, 4), (2, 3, 4)), CONVOLUTION)],
    "_convolution_biased": [Sizes(((0, 6, 4), (2, 3, 4), (2,)), {**CONVOLUTION, "positive": True})],
    "_convolution_added": [
        Sizes(((0, 6, 4), (2, 3, 4), (2,), (0, 3, 2)), {**CONVOLUTION, "positive": False})
    ],
    "_convolution_inputs_whole": [
        Sizes(((0, 3, 2), (2, 3, 4)), {"places": (6,), **CONVOLUTION}),
        Sizes(((2, 3, 0), (0, 3, 4)), {"places": (6,), **CONVOLUTION}),
    ],
    "_convolution_filters_whole": [
        Sizes(((0, 6, 4), (0, 3, 2)), {"size": (3,), **CONVOLUTION}),
        Sizes(((2, 6, 0), (2, 3, 2)), {"size": (3,), **CONVOLUTION}),
    ],
    "_windows": [Sizes(((0, 6, 2),), {"size": (3,), "strides": (2,), "dilation": (1,)})],
    "max_pooling": [Sizes(((0, 6, 2),), {"size": 2}), Sizes(((1, 1, 1),), {"size": 1})],
    "max_pooling_indices": [Sizes(((2, 6, 0),), {"size": 2}), Sizes(((1, 1, 1),), {"size": 1})],
    "_max_pooling_inputs": [Sizes(((0, 2, 3), (0, 2, 3)), {"places": (4,), **POOLING}, 2)],
    "_gathered_whole": [Sizes(((0, 5, 4, 2),), GATHERED)],
    "_max_pooling_whole": [Sizes(((0, 5, 4, 2),), PICTURES)],
    "_max_pooling_indices_whole": [Sizes(((0, 5, 4, 2),), PICTURES)],
    "_max_pooling_inputs_whole": [
        Sizes(((0, 2, 3, 3), (0, 2, 3, 3)), {"places": (5, 4), **PICTURES}, 2)
    ],
    "_max_pooling_positive_inputs_whole": [
        Sizes(((0, 2, 3, 3), (0, 2, 3, 3), (0, 2, 3, 3)), {"places": (5, 4), **PICTURES}, 2)
    ],
    "_max_pooling_chosen": [Sizes(((0, 4, 3), (0, 2, 3)), POOLING, 2)],
    "average_pooling": [Sizes(((0, 6, 2),), {"size": 2}), Sizes(((1, 1, 1),), {"size": 1})],
    "_average_pooling_inputs": [Sizes(((0, 2, 3),), {"places": (4,), **POOLING, "count_padding": True})],
    "take": [Sizes(((5, 3), (0,)), {}, 5), Sizes(((5, 0), (2,)), {}, 5), Sizes(((1,), (1,)), {}, 1)],
    "scatter_add": [Sizes(((0, 3), (0,)), {"count": 5}, 5), Sizes(((1,), (1,)), {"count": 1}, 1)],
    "one_hot": [Sizes(((0,),), {"depth": 5}, 5), Sizes(((),), {"depth": 1}, 1)],
    "take_class": [Sizes(((0, 5), (0,)), {}, 5), Sizes(((1, 1), (1,)), {}, 1)],
    "cholesky": [Sizes(((0, 0),)), Sizes(((0, 3, 3),)), Sizes(((2, 0, 0),)), Sizes(((1, 1),))],
    "solve_triangular": [
        Sizes(((0, 0), (0, 3)), {"lower": True}), Sizes(((3, 3), (3, 0)), {"lower": False}),
        Sizes(((0, 3, 3), (3, 2)), {"lower": True}), Sizes(((1, 1), (1, 1)), {"lower": False}),
    ],
    "_recurrence": [Sizes(((0,), (0,))), Sizes(((0, 3), (0, 3))), Sizes(((1, 1), (1, 1)))],
    "cumsum": [Sizes(((0,),)), Sizes(((0, 3),), {"axis": 1}), Sizes(((1, 1),), {"axis": 0})],
    "softmax": [Sizes(((0, 3),)), Sizes(((3, 0),)), Sizes(((1,),))],
    "log_softmax": [Sizes(((0, 3),)), Sizes(((3, 0),)), Sizes(((1,),))],
    "random_uniform": [],  # tested with its samples' shapes below
    "sum": [Sizes(((0,),)), Sizes(((3, 0),), {"axis": 1}), Sizes(((0, 3),), {"axis": 1}), Sizes(((),))],
    "_deviations": [
        Sizes(((0,),)), Sizes(((3, 0),), {"axis": 1}), Sizes(((0, 3),), {"axis": 0}),
        Sizes(((3, 0),), {"axis": 0}), Sizes(((1, 3),), {"axis": 0}), Sizes(((),)),
    ],
    "prod": [Sizes(((0,),)), Sizes(((3, 0),), {"axis": 1}), Sizes(((0, 3),), {"axis": 1}), Sizes(((),))],
    **{
        name: [Sizes(((0, 3),), {"axis": 1}), Sizes(((1, 1),)), Sizes(((),))]
        for name in ("max", "min", "argmax", "argmin")
    },
}  # fmt: skip


def small_sizes(op: Op) -> list[Sizes]:
    if op.name in EMPTY:
        return EMPTY[op.name]
    assert op.kind is OpKind.POINTWISE, f"{op.name} needs a row in EMPTY"
    count = len(op.args)
    shapes: list[tuple[tuple[int, ...], ...]] = [
        ((0,),) * count, ((2, 0, 3),) * count, ((1,),) * count, ((),) * count, ((1, 1),) * count
    ]  # fmt: skip
    if count > 1:
        shapes += [
            ((0, 3), *[(3,)] * (count - 1)),
            ((1,), *[(0,)] * (count - 1)),
            ((), *[(0,)] * (count - 1)),
        ]
    return [Sizes(s) for s in shapes]


@every_op
def test_sizes_0_and_1(op: Op, checked: Callable[[int], None]) -> None:
    for sizes in small_sizes(op):
        arrays = drawn(op, sizes, 0)
        case = Case(op, arrays, sizes.attributes)
        result = case.run()
        if all(result.shape) and not any(x.size == 0 for x in arrays):
            assert_matches(case, result)
        inputs = [placeholder(f"x{i}", Spec(x.shape, x.dtype)) for i, x in enumerate(arrays)]
        node = op(*case.listed(list(inputs)), **sizes.attributes)
        found = slopes(op, node, [x for x in inputs if x.dtype == np.float64])
        got, *values = Executable([node, *found], check=True).run(
            dict(zip(inputs, arrays, strict=True))
        )
        assert bits(got) == bits(result)
        shapes = [x.shape for x in inputs if x.dtype == np.float64]
        assert [v.shape for v in values] == shapes[: len(values)]
        compiled = Executable([node, *found], executor="native", check=True)
        got, *compiled_values = compiled.run(dict(zip(inputs, arrays, strict=True)))
        assert (got.shape, got.dtype) == (result.shape, result.dtype)
        for one, other in zip([got, *compiled_values], [result, *values], strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12, err_msg=str(case))
        checked(4 + 2 * len(values))


@pytest.mark.parametrize("name", ["max", "min", "argmax", "argmin"])
def test_nothing_to_choose_from(name: str) -> None:
    with pytest.raises(ShapeError) as info:
        BUILT_IN[name](np.ones((3, 0)), axis=1)
    assert str(info.value) == f"{name}: " + NO_EXTREME.format(1, "(3, 0)")
    x = placeholder("x", Spec((BATCH, 3), np.dtype(np.float64)))
    with pytest.raises(ShapeError) as info:
        Executable([BUILT_IN[name](x, axis=0)]).run({x: np.ones((0, 3))})
    assert str(info.value) == f"{name}: " + NO_EXTREME.format(0, "(0, 3)")


def test_values_of_empty_reductions_are_numpys() -> None:
    empty = np.ones((3, 0), np.float32)
    assert ops.sum(empty, 1).tolist() == [0, 0, 0]
    assert ops.prod(empty, 1).tolist() == [1, 1, 1]
    assert np.isnan(ops.mean(empty, 1)).all()
    assert ops.matmul(empty, np.ones((0, 2))).tolist() == [[0, 0]] * 3
    assert ops.random_uniform(np.int64(1), (3, 0)).shape == (3, 0)
