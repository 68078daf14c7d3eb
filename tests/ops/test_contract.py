"""The contract of every op, generated from its record."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from magmadnn.errors import DTypeError
from magmadnn.graph import Node, Spec
from magmadnn.graph.node import placeholder
from magmadnn.graph.op import Op
from magmadnn.runtime import Executable
from tests.ops.contract_cases import (
    BUILT_IN,
    EPS,
    EXACT,
    FLOATS,
    INTEGERS,
    LAYOUTS,
    REFUSED,
    ROUNDINGS,
    SUMS,
    Case,
    assert_matches,
    bits,
    cases,
)

Checked = Callable[[int], None]
every_op = pytest.mark.parametrize("op", BUILT_IN.values(), ids=BUILT_IN)


def test_every_op_says_how_exact_it_is() -> None:
    assert {*ROUNDINGS, *EXACT, *SUMS, "prod"} == {*BUILT_IN}


def on_graph(case: Case) -> tuple[Node, list[Node]]:
    """The op on placeholders."""
    inputs = [placeholder(f"x{i}", Spec(x.shape, x.dtype)) for i, x in enumerate(case.operands)]
    return case.op(*case.listed(inputs), **case.attributes), inputs


@every_op
def test_result_equals_the_reference(op: Op, checked: Checked) -> None:
    count = 0
    for dtype in (*FLOATS, *INTEGERS):
        if dtype in REFUSED.get(op.name, ()):
            continue
        for case in cases(op, dtype):
            assert_matches(case, case.run())
            count += 1
    checked(count)


@every_op
def test_operands_stay_as_they_are(op: Op, checked: Checked) -> None:
    count = 0
    for dtype in FLOATS:
        for case in cases(op, dtype):
            before = [bits(x) for x in case.operands]
            for x in case.operands:
                x.setflags(write=False)
            case.run()
            assert [bits(x) for x in case.operands] == before
            count += 1
    checked(count)


@every_op
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda f: f.__name__)
def test_layouts(op: Op, layout: Callable[..., np.ndarray], checked: Checked) -> None:
    count = 0
    for dtype in ("float64", "float32", "bfloat16"):
        for case in cases(op, dtype):
            odd = case._replace(operands=[layout(x) if x.ndim else x for x in case.operands])
            assert_matches(odd, odd.run())
            count += 1
    checked(count)


@every_op
def test_graph_and_direct_computation_agree_bit_for_bit(op: Op, checked: Checked) -> None:
    """To some roundings for those few that are computed at once by faster means."""
    count = 0
    for dtype in (*FLOATS, "int32", "uint8"):
        for case in cases(op, dtype):
            if dtype in REFUSED.get(op.name, ()):
                continue
            node, inputs = on_graph(case)
            direct = case.run()
            feeds = dict(zip(inputs, case.operands, strict=True))
            # check: what is computed has the shape and dtype that the op said
            (result,) = Executable([node], check=True).run(feeds)
            assert (node.shape, node.dtype) == (direct.shape, direct.dtype), case
            if op.at_once is None or dtype not in FLOATS:  # integers have one right answer
                assert bits(result) == bits(direct), case
            else:
                # The reference executor is NumPy, which has potrf and no substitution. Arrays that are there
                # take the fastest way: one matrix SciPy's LAPACK (a call of NumPy's, or one of a compiled
                # step, takes several times as long), a stack the kernels of compiled steps (next test). Each
                # adds in an order of its own, so the bits of one are not those of another.
                unit = 100 * EPS[direct.dtype.name] * np.abs(direct).max(initial=0)
                np.testing.assert_allclose(result, direct, rtol=0, atol=unit, err_msg=str(case))
            count += 2
    checked(count)


@pytest.mark.parametrize("name", ["cholesky", "solve_triangular"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_stacks_that_are_there_have_the_bits_of_compiled_steps(name: str, dtype: str) -> None:
    op, count = BUILT_IN[name], 0
    for case in cases(op, dtype):
        if max(x.ndim for x in case.operands) > 2:
            node, inputs = on_graph(case)
            feeds = dict(zip(inputs, case.operands, strict=True))
            (compiled,) = Executable([node], executor="native", check=True).run(feeds)
            assert bits(compiled) == bits(case.run()), case
            count += 1
    assert count


@every_op
def test_refused_dtypes(op: Op, checked: Checked) -> None:
    for dtype in REFUSED.get(op.name, ()):
        for case in cases(op, dtype):
            names = ", ".join(f"{op.args[i]} {x.dtype.name}" for i, x in enumerate(case.operands))
            with pytest.raises(DTypeError) as info:
                case.run()
            assert str(info.value) == f"{op.name}: does not take {names}; cast to a type it takes"
            checked(1)


DECOMPOSED = {name: op for name, op in BUILT_IN.items() if op.decompose is not None}


@pytest.mark.parametrize("op", DECOMPOSED.values(), ids=DECOMPOSED)
def test_other_ops_of_equal_value(op: Op, checked: Checked) -> None:
    """What `decompose` makes is the same value, where it makes anything."""
    count = 0
    for dtype in (*FLOATS, "int32", "uint8"):
        for case in cases(op, dtype):
            node, inputs = on_graph(case)
            assert op.decompose is not None
            made = op.decompose(*node.inputs, **node.attributes)
            if made is None:
                continue
            assert made.op is not op
            assert made.spec == node.spec
            feeds = dict(zip(inputs, case.operands, strict=True))
            assert_matches(case, Executable([made], check=True).run(feeds)[0])
            count += 2
    assert count
    checked(count)


@every_op
def test_compiled_code_equals_the_reference(op: Op, checked: Checked) -> None:
    """The same bounds hold for the native executor, on its kernels or on calls of NumPy."""
    dtypes = [d for d in (*FLOATS, "int32") if d not in REFUSED.get(op.name, ())]
    every = [case for dtype in dtypes for case in cases(op, dtype)]
    nodes, feeds = [], {}
    for case in every:  # all in one program: compiled together
        node, inputs = on_graph(case)
        nodes.append(node)
        feeds |= dict(zip(inputs, case.operands, strict=True))
    results = Executable(nodes, executor="native").run(feeds)
    for case, node, result in zip(every, nodes, results, strict=True):
        assert result.dtype == node.dtype
        assert_matches(case, result)
    checked(len(every))
