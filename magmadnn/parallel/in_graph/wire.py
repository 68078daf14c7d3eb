"""What a step sends to other ranks, and how much of that time other work hid."""

from __future__ import annotations

from collections.abc import Sequence

from magmadnn.comm import Communicator
from magmadnn.parallel.tree import SMALL_BYTES, TreeSum

from .beside import Span, beside
from .whole_step import WholeStep


def sent_bytes(whole: WholeStep, tree: TreeSum, ranks: int, leaves: int, is_on_gpu: bool) -> int:
    """Bytes that this rank sends in a step.

    Of a sum of n bytes over P ranks NCCL's ring sends 2 n (P - 1) / P. By the tree a rank with k blocks sends
    k n (P - 1) up to `SMALL_BYTES`, else (k + 1) n (P - 1) / P, but for rounding.
    """
    if ranks == 1:
        return 0
    if is_on_gpu:
        return sum(2 * n * (ranks - 1) // ranks for n in whole.buckets)
    blocks = len(tree.blocks(tree.rank, range(leaves)))
    return sum(
        blocks * n * (ranks - 1) if n <= SMALL_BYTES else (blocks + 1) * n * (ranks - 1) // ranks
        for n in whole.buckets
    )


def hidden(spans: Sequence[Span]) -> tuple[float, float] | None:
    """Of some steps' sums: seconds from begin to end of one step's, and the share in which nobody waited."""
    steps = len([span for span in spans if span.number == 0])
    whole = sum(span.ended - span.begun for span in spans)
    if not steps or whole <= 0:
        return None
    return whole / steps, sum((span.ended - span.begun) * span.hidden for span in spans) / whole


def wire_text(
    whole: WholeStep, communicator: Communicator, tree: TreeSum, leaves: int, is_on_gpu: bool
) -> str:
    """What a plan says of ranks."""
    ranks, rank = communicator.size, communicator.rank
    if ranks == 1:
        return "# one rank: nothing is sent"
    sent = sent_bytes(whole, tree, ranks, leaves, is_on_gpu)
    summed = f"{len(whole.buckets)} sums of {sum(whole.buckets)} bytes a step"
    lines = [f"# rank {rank} of {ranks}: {summed}, {sent} bytes sent by this rank"]
    measured = None if is_on_gpu else hidden(beside(communicator).spans)
    if measured is not None:
        seconds, share = measured
        lines.append(
            f"# sums were under way {seconds * 1e6:.0f} us a step, {100 * share:.0f} % of that beside other "
            "work (measured)"
        )
    return "\n".join(lines)
