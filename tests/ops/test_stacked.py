"""Every op with an axis of models in front of any of its operands: what it gives for each model alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray

from magmadnn.graph import Node, Spec
from magmadnn.graph.node import constant, placeholder
from magmadnn.graph.op import REGISTRY, Op, OpKind
from magmadnn.graph.program import Program
from magmadnn.graph.transforms.stacking import stacked_program
from magmadnn.runtime import Executable
from tests.ops.contract_cases import BUILT_IN, EXACT, Case, assert_matches, bits, cases

Checked = Callable[[int], None]
MODELS = 3
# Those that become another one, which is of all models.
INSTEAD = {
    "convolution": "_convolutions", "_convolution_inputs": "_convolutions_inputs",
    "_convolution_filters": "_convolutions_filters",
}  # fmt: skip
every_op = pytest.mark.parametrize("op", BUILT_IN.values(), ids=BUILT_IN)
# Ops that become a node for each model.
UNROLLED = {
    "random_uniform",
    "_convolution_whole", "_convolution_inputs_whole", "_convolution_filters_whole",
    "_convolution_biased", "_convolution_added", "_frequencies", "_from_frequencies", "_checkpoint", "_after",
    "_max_pooling_whole", "_max_pooling_indices_whole", "_max_pooling_inputs_whole",
    "_max_pooling_positive_inputs_whole", "_gathered_whole",
    "_convolution_pooled", "_convolution_pooled_numbers", "_convolution_pooled_inputs",
    "_convolution_pooled_filters",
}  # fmt: skip


def of_models(op: Op, dtype: str) -> Iterator[list[Case]]:
    """The cases of an op, each with other values for each model; attributes are the same."""
    for each in zip(*(cases(op, dtype, seed) for seed in range(MODELS)), strict=True):
        if op.kind is OpKind.RANDOM:
            each = tuple(c._replace(operands=[c.operands[0] + k]) for k, c in enumerate(each))
        if not all(c.attributes == each[0].attributes for c in each):
            raise AssertionError(op.name)
        yield list(each)


def stacks(of: list[Case]) -> Iterator[list[Case]]:
    """The same with the first model's value in all models, for some operands but not for all."""
    for own in product((True, False), repeat=len(of[0].operands)):
        if any(own):
            yield [
                c._replace(
                    operands=[
                        x if is_own else first
                        for x, first, is_own in zip(c.operands, of[0].operands, own, strict=True)
                    ]
                )
                for c in of
            ]


def stacked(of: list[Case]) -> tuple[Program, dict[Node, NDArray[np.generic]]]:
    """The program of all models, whose operands are constants where they are equal."""
    shared = [len({bits(c.operands[k]) for c in of}) == 1 for k in range(len(of[0].operands))]
    inputs = [
        [
            constant(x) if same else placeholder(f"x{k}", Spec(x.shape, x.dtype))
            for k, (x, same) in enumerate(zip(c.operands, shared, strict=True))
        ]
        for c in of
    ]
    programs = [
        Program((c.op(*c.listed(nodes), **c.attributes),))
        for c, nodes in zip(of, inputs, strict=True)
    ]
    fed: dict[Node, NDArray[np.generic]] = {}

    def leaf(nodes: tuple[Node, ...]) -> Node:
        spec = nodes[0].spec
        made = placeholder(nodes[0].name, Spec((MODELS, *spec.shape), spec.dtype))
        number = inputs[0].index(nodes[0])
        fed[made] = np.stack([c.operands[number] for c in of])
        return made

    return stacked_program(programs, leaf), fed


@every_op
@pytest.mark.parametrize("executor", ["reference", "native"])
def test_each_model_gets_its_own_result(op: Op, executor: str, checked: Checked) -> None:
    every = [
        each
        for dtype in ("float64", "float32")[
            executor == "native" :
        ]  # half of the kernels to compile
        for whole in of_models(op, dtype)
        for each in stacks(whole)
    ]
    made = [stacked(each) for each in every]
    nodes = [program.outputs[0] for program, _ in made]  # all of one program: compiled together
    feeds = {node: array for _, fed in made for node, array in fed.items()}
    for each, found in zip(every, Executable(nodes, executor=executor).run(feeds), strict=True):
        assert len(found) == MODELS
        for case, result in zip(each, found, strict=True):
            assert_matches(case, result)
            if executor == "reference" and op.name in EXACT:
                assert bits(result) == bits(case.run())
    checked(len(every))


@every_op
def test_one_node_does_for_all_models(op: Op) -> None:
    """Where the record says so; a node of this op for each model would be `MODELS` of them."""
    assert (op.stacked is None) == (op.name in UNROLLED)
    case = next(of_models(op, "float64"))
    program, _ = stacked(case)
    names = [n.op.name for n in program.nodes()]
    made = INSTEAD.get(op.name, op.name)
    assert names.count(made) == (MODELS if op.name in UNROLLED else 1)


def test_values_that_are_the_same_for_all_are_computed_once() -> None:
    add, exp = REGISTRY["add"], REGISTRY["exp"]

    def program(value: float) -> Program:
        same = exp(constant(np.array([2.0, 3.0])))
        return Program((add(same, constant(np.array(value))), same))

    made = stacked_program([program(1.0), program(5.0), program(7.0)], lambda nodes: nodes[0])
    assert [n.spec.shape for n in made.nodes() if n.op is exp] == [(2,)]
    both, alone = Executable(made.outputs).run({})
    expected = np.exp([2.0, 3.0])
    np.testing.assert_array_equal(both, np.array([[1.0], [5.0], [7.0]]) + expected)
    np.testing.assert_array_equal(alone, np.tile(expected, (3, 1)))


def test_an_attribute_that_differs_makes_a_node_for_each_model() -> None:
    total = REGISTRY["sum"]
    x = np.arange(6.0).reshape(2, 3)[:, :2]

    def program(axis: int) -> Program:
        return Program((total(placeholder("x", Spec(x.shape, x.dtype)), axis=axis),))

    fed: dict[Node, NDArray[np.generic]] = {}

    def leaf(nodes: tuple[Node, ...]) -> Node:
        made = placeholder("x", Spec((2, *x.shape), x.dtype))
        fed[made] = np.stack([x, 10 * x])
        return made

    made = stacked_program([program(0), program(1)], leaf)
    (found,) = Executable(made.outputs).run(fed)
    np.testing.assert_array_equal(found, [[3.0, 5.0], [10.0, 70.0]])
