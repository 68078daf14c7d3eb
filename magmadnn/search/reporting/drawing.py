"""Pictures of a study: history, Pareto front, parallel coordinates, importance."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from magmadnn.errors import ArgumentError, MissingExtraError, UnknownNameError
from magmadnn.search.findings import Findings
from magmadnn.search.importances import importance_of
from magmadnn.search.spaces.dimensions import Dimension, Range
from magmadnn.search.trials.records import STOPPED, Trial
from magmadnn.storage.durable import write_file

_BLUE, _ORANGE, _GREY = "#1f5fa8", "#d2691e", "#9a9a9a"
_MOST_LINES = 2000  # of parallel coordinates
_LABEL = 14  # characters of a value on an axis


def overview(study: Findings) -> Any:
    """The four pictures in one figure."""
    figure = _figure(11.0, 8.0)
    panels = figure.subplots(2, 2)
    for panel, draw in zip(panels.flat, PICTURES.values(), strict=True):
        draw(study, panel)
    return figure


def picture(study: Findings, name: str) -> bytes:
    """One of the pictures, as PNG."""
    figure = _figure(9.0 if name == "parallel" else 6.4, 4.2)
    PICTURES[name](study, figure.subplots())
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=120, metadata={"Software": None})
    return drawn.getvalue()


def write_picture(figure: Any, path: Path) -> None:
    """Write a figure to a file whose ending says the format; without one it is .png.

    Raises:
        UnknownNameError: matplotlib does not know the ending.
        FileError: it cannot be written.
    """
    path = path if path.suffix else path.with_name(f"{path.name}.png")
    known, ending = figure.canvas.get_supported_filetypes(), path.suffix.removeprefix(".").lower()
    if ending not in known:
        raise UnknownNameError.of(f"study.plot {path}: format", ending, known)
    drawn = io.BytesIO()
    figure.savefig(drawn, format=ending, dpi=120)
    write_file(path, drawn.getvalue())


def check_drawing(study: Findings) -> None:
    """Look whether there is something to draw, and something to draw it with.

    Raises:
        MissingExtraError: without matplotlib.
        ArgumentError: no trial has a value yet.
    """
    _figure(1.0, 1.0)
    if not any(trial.values for trial in study.trials):
        raise ArgumentError("study.plot: no trial has a value yet")


def _figure(width: float, height: float) -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError.of("matplotlib", "study.plot", "plot") from error
    return Figure(figsize=(width, height), layout="constrained")


def _history(study: Findings, panel: Any) -> None:
    """The first objective of each trial, and the best so far."""
    valued = [trial for trial in study.trials if trial.values]
    for state, colour, label in ((STOPPED, _GREY, "stopped early"), (None, _BLUE, "trial")):
        some = [t for t in valued if (t.state == STOPPED) == (state == STOPPED)]
        if some:
            panel.plot(
                [t.number for t in some],
                [t.values[0] for t in some],
                "o",
                markersize=4,
                color=colour,
                label=label,
            )
    sign = study.signs[0]
    ended = [t for t in valued if t.state != STOPPED] or valued
    best = np.maximum.accumulate([sign * t.values[0] for t in ended])
    panel.step(
        [t.number for t in ended], sign * best, where="post", color=_ORANGE, label="best so far"
    )
    lost = [t.number for t in study.trials if not t.values]
    if lost:
        low = min(t.values[0] for t in valued)
        panel.plot(lost, [low] * len(lost), "x", color="#b00020", markersize=5, label="no value")
    panel.set_xlabel("trial")
    panel.set_ylabel(study.objectives[0])
    panel.set_title("History")
    panel.xaxis.get_major_locator().set_params(integer=True)
    panel.grid(alpha=0.3)
    panel.legend(fontsize=8)


def _front(study: Findings, panel: Any) -> None:
    """Two objectives and their front; of one objective, it and the seconds of training."""
    trials = [trial for trial in study.trials if trial.values and trial.state != STOPPED]
    trials = trials or [trial for trial in study.trials if trial.values]
    if len(study.objectives) > 1:
        names, x = study.objectives[:2], [trial.values[0] for trial in trials]
        y = [trial.values[1] for trial in trials]
        best = study.pareto()
        line = sorted((trial.values[0], trial.values[1]) for trial in best)
        panel.plot(*zip(*line, strict=True), "-o", color=_ORANGE, zorder=3, label="Pareto front")
        panel.set_title("Pareto front")
    else:
        names, x = (study.objectives[0], "seconds"), [trial.values[0] for trial in trials]
        y = [trial.metrics.get("seconds", 0.0) for trial in trials]
        best = [study.best]
        panel.plot(
            [best[0].values[0]],
            [best[0].metrics.get("seconds", 0.0)],
            "o",
            color=_ORANGE,
            zorder=3,
            label="best",
        )
        panel.set_title("Objective and time")
    panel.plot(x, y, "o", markersize=4, color=_BLUE, alpha=0.6, label="trial")
    if len(study.objectives) == 1:
        panel.set_ylim(bottom=0.0)  # last: it keeps the top as it is then
    panel.set_xlabel(names[0])
    panel.set_ylabel(names[1])
    panel.grid(alpha=0.3)
    panel.legend(fontsize=8)


def _parallel(study: Findings, panel: Any) -> None:
    """A line for each trial through its parameters and the objective; dark ones are good."""
    from matplotlib import colormaps
    from matplotlib.collections import LineCollection

    trials = [trial for trial in study.trials if trial.values]
    scores = np.array([study.signs[0] * trial.values[0] for trial in trials])
    order = np.argsort(scores, kind="stable")[-_MOST_LINES:]
    named = {n: d for n, d in study.space.dimensions.items() if d.count != 1}
    low, high = float(scores.min()), float(scores.max())
    height = (scores - low) / ((high - low) or 1.0)
    lines = [[*_positions(named, trials[k]), (len(named), height[k])] for k in order]
    ranks = np.linspace(0.05, 1.0, len(order))
    colours = [colormaps["viridis_r"](rank) for rank in ranks]
    panel.add_collection(LineCollection(lines, colors=colours, linewidths=1.0, alpha=0.75))
    for k, dimension in enumerate(named.values()):
        panel.axvline(k, color="black", linewidth=0.8)
        for position, text in _ticks(dimension):
            panel.text(k + 0.03, position, text, fontsize=7, va="center", bbox=_BOX, zorder=4)
    panel.axvline(len(named), color="black", linewidth=0.8)
    for position, value in ((0.0, low), (1.0, high)):
        panel.text(
            len(named) + 0.03,
            position,
            f"{study.signs[0] * value:.4g}",
            fontsize=7,
            va="center",
            bbox=_BOX,
        )
    panel.set_xlim(-0.1, len(named) + 0.5)
    panel.set_ylim(-0.06, 1.06)
    panel.set_yticks([])
    panel.set_xticks(range(len(named) + 1), [*named, study.objectives[0]], fontsize=8, rotation=15)
    panel.set_title("Parallel coordinates (dark: good)")


_BOX = {"facecolor": "white", "edgecolor": "none", "alpha": 0.7, "pad": 0.6}


def _positions(named: dict[str, Dimension], trial: Trial) -> list[tuple[int, float]]:
    """Where a trial's line meets the axes of the parameters that it has."""
    found = []
    for k, (name, dimension) in enumerate(named.items()):
        if name in trial.point:
            found.append((k, dimension.position(trial.point[name]) or 0.0))
    return found


def _ticks(dimension: Dimension) -> list[tuple[float, str]]:
    """Positions on the axis of a parameter, and what stands there."""
    if isinstance(dimension, Range):
        values: Sequence[Any] = [dimension.at(p) for p in (0.0, 0.5, 1 - 2**-53)]
    else:
        count = dimension.count or 1
        numbers = range(count) if count <= 6 else sorted({0, count // 2, count - 1})
        values = [dimension.numbered(k) for k in numbers]
    return [(dimension.position(value) or 0.0, _short(value)) for value in values]


def _short(value: Any) -> str:
    text = f"{value:.3g}" if isinstance(value, float) else str(value)
    return text if len(text) <= _LABEL else f"{text[: _LABEL - 3]}..."


def _importance(study: Findings, panel: Any) -> None:
    """A bar for each parameter."""
    found = importance_of(study.space, study.trials)
    names, shares = list(found)[::-1], list(found.values())[::-1]
    panel.barh(names, shares, color=_BLUE)
    for k, share in enumerate(shares):
        panel.text(share + 0.01, k, f"{share:.0%}", va="center", fontsize=8)
    panel.set_xlim(0, max([0.1, *shares]) * 1.15)
    panel.set_xlabel(f"share of the variance of {study.objectives[0]} (ranks)")
    panel.set_title("Importance" if found else "Importance: too few trials")
    panel.grid(alpha=0.3, axis="x")


PICTURES: dict[str, Callable[[Findings, Any], None]] = {
    "history": _history,
    "front": _front,
    "parallel": _parallel,
    "importance": _importance,
}
