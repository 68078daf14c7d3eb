"""The papers' network with 2 to 8 hidden layers (MagmaDNN, Table 1): what a layer more costs."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.harness.cases import OURS, Claim, Goal, Result, Settings
from benchmarks.harness.command import main
from benchmarks.harness.gpu_cases import COMPILED, training
from benchmarks.networks import papers

HIDDEN = (2, 3, 4, 6, 8)


def claim(settings: Settings) -> Claim:
    rows = 1_000 if settings.quick else 12_000
    goal = (Goal("ratio", 1.0, COMPILED),)
    names = (OURS, *COMPILED)
    return Claim(
        "time by depth, one epoch",
        [
            training(f"{n} hidden layers, tf32", papers(n), rows, goal, "tf32", names)
            for n in HIDDEN
        ],
        summary=_slopes,
    )


def _slopes(results: Sequence[Result]) -> list[str]:
    """Time of a step for each layer more, from the shallowest to the deepest network measured."""
    first, last = results[0], results[-1]
    added = _hidden(last) - _hidden(first)
    if not added:
        return []
    lines, slopes = [], dict[str, float]()
    for name, figure in last.figures.items():
        before = first.figures[name]
        if figure.blocks and before.blocks:
            seconds = figure.median / last.case.steps - before.median / first.case.steps
            each = seconds / added * 1e6
            slopes[name] = each
            lines.append(f"a layer more costs {name} {each:.2f} us a step (by the medians)")
    if OURS in slopes and len(slopes) > 1:  # the goal: less than it costs any peer
        least = min(each for name, each in slopes.items() if name != OURS)
        verdict = "reached" if slopes[OURS] < least else "**not reached**"
        lines.append(f"goal, a layer more costs less than any peer ({least:.2f} us): {verdict}")
    return lines


def _hidden(result: Result) -> int:
    return int(result.case.name.split()[0])


if __name__ == "__main__":
    main({"depth": claim}, device="cuda")
