"""Steps whose results last until a variable is written: they depend on variables and constants alone.

An example are filters that a convolution transforms (Winograd). Where a program writes no variable, such
results keep a place of their own, and a run computes them only if a variable has changed since. To find that
out takes about as long as to read the variables twice, so only products are kept that take much longer, with
the steps that they need.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from magmadnn.compiler.regions.draft import Work
from magmadnn.compiler.regions.region import BY_PYTHON, RegionKind, product_of
from magmadnn.graph.dim import product
from magmadnn.graph.node import CONSTANT, VARIABLE, Node
from magmadnn.graph.program import Program

_LEAST = 1 << 16  # elements of variables: for fewer it is not worth the trouble
_PRODUCTS = 8  # multiply-adds for each of them, at least


@dataclass(frozen=True)
class Lasting:
    """The steps that are kept.

    Attributes:
        work: the steps.
        variables: what they depend on, in the order of the program.
    """

    work: frozenset[Work] = frozenset()
    variables: tuple[Node, ...] = ()


def lasting_of(program: Program, works: Sequence[Work]) -> Lasting:
    """The steps of a plan that are worth keeping, where it writes no variables.

    Args:
        program: what is computed.
        works: the steps, in running order.
    """
    makers = _lasting_makers(works)
    kept, read = set[Work](), set[Node]()
    for work in dict.fromkeys(makers.values()):
        if work.region.kind is not RegionKind.GEMM:
            continue
        variables, needed = _upstream([work], makers)
        if _pays(work, variables):
            kept |= needed
            read |= variables
    in_order = (node for node in program.nodes() if node in read)
    return Lasting(frozenset(kept), tuple(in_order))


def _lasting_makers(works: Sequence[Work]) -> dict[Node, Work]:
    """The step of each value that is stored and depends on variables and constants alone."""
    stored = {node for work in works for node in work.needed}
    makers: dict[Node, Work] = {}

    def lasts(node: Node) -> bool:
        if node.op in (VARIABLE, CONSTANT) or node in makers:
            return True
        is_view = node not in stored and bool(node.inputs)
        return is_view and all(map(lasts, node.inputs))

    for work in works:
        nodes = set(work.region.nodes)
        inputs = {i for node in nodes for i in node.inputs} - nodes
        by_rule = work.region.kind not in (*BY_PYTHON, RegionKind.RANDOM)
        if by_rule and inputs and all(map(lasts, inputs)):
            makers |= dict.fromkeys(work.needed, work)
    return makers


def _upstream(works: Iterable[Work], makers: dict[Node, Work]) -> tuple[set[Node], set[Work]]:
    """The variables that lasting steps depend on, and the steps, themselves included."""
    ahead, variables, found = list(works), set[Node](), set[Work]()
    while ahead:
        work = ahead.pop()
        if work in found:
            continue
        found.add(work)
        nodes = [i for node in work.region.nodes for i in node.inputs]
        seen = set(work.region.nodes)
        while nodes:
            node = nodes.pop()
            if node in seen:
                continue
            seen.add(node)
            if node.op is VARIABLE:
                variables.add(node)
            elif node in makers:
                ahead.append(makers[node])
            else:
                nodes += node.inputs
    return variables, found


def _pays(work: Work, variables: Iterable[Node]) -> bool:
    """Whether a product takes much longer than to compare the variables that it depends on."""
    made = product_of(work.region)
    count = product((*made.shape, made.inputs[0].shape[-1]))
    elements = [product(node.shape) for node in variables]
    known = [n for n in (count, *elements) if isinstance(n, int)]
    if len(known) <= len(elements):  # a size is symbolic
        return False
    return sum(known[1:]) >= _LEAST and known[0] >= _PRODUCTS * sum(known[1:])
