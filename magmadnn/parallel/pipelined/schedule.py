"""In which order a stage takes micro-batches: one forward, one backward."""

from __future__ import annotations


def orders(stage: int, stages: int, pieces: int) -> list[tuple[bool, int]]:
    """What a stage does in turn: (whether forward, number of the micro-batch).

    It begins with as many forward as there are stages after it, and then does one forward, one backward;
    so at most `stages - stage` micro-batches wait for their way back.
    """
    warm = min(stages - stage - 1, pieces)
    found = [(True, number) for number in range(warm)]
    for number in range(pieces - warm):
        found += [(True, warm + number), (False, number)]
    return found + [(False, number) for number in range(pieces - warm, pieces)]
