"""Tables for people, JSON for programs."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from .cases import Figure, Goal, Outcome, Result

Machine = Mapping[str, Any]
HEAD = (
    "| case | contender | minimum | median | spread | a step | ours / it (min, median) "
    "| of peak (min, median) |\n|---|---|---|---|---|---|---|---|"
)


def section(title: str, threads: int, results: Sequence[Result]) -> str:
    """All contenders of a claim's cases, then goals and what did not agree."""
    on = "on the GPU" if results[0].settings.device == "cuda" else _threads(threads)
    lines = [f"### {title}, {on}", "", HEAD]
    lines += [rows(result) for result in results]
    lines += ["", *_remarks(results)]
    return "\n".join(lines)


def page(machine: Machine, results: Sequence[tuple[str, Result]], quick: bool) -> str:
    """Everything: the machine, all goals in one table, all figures."""
    lines = [f"# Benchmarks of {machine['date']}", ""]
    if quick:
        lines += ["**Tried with --quick: small sizes, two blocks. These are no results.**", ""]
    lines += [*_machine_lines(machine), *_peaks(results), "", "## Goals", "", *_goal_lines(results)]
    lines += ["", "## Figures", ""]
    groups: dict[tuple[str, int], list[Result]] = {}
    for title, result in results:
        groups.setdefault((title, result.settings.threads), []).append(result)
    for (title, threads), found in groups.items():
        lines += [section(title, threads, found), ""]
    return "\n".join(lines)


def as_json(machine: Machine, results: Sequence[tuple[str, Result]], quick: bool) -> str:
    """The same with every block."""
    rows = [
        {
            "claim": title,
            "case": result.case.name,
            "unit": result.case.unit,
            "steps": result.case.steps,
            "flops": result.case.flops,
            "dtype": result.case.dtype,
            "settings": dataclasses.asdict(result.settings),
            "figures": {n: dataclasses.asdict(f) for n, f in result.figures.items()},
            "peak_flops_per_second": result.peak_flops.blocks,
            "failed_checks": result.failed_checks,
            "goals": [_outcome_data(o) for o in result.outcomes()],
        }
        for title, result in results
    ]
    return json.dumps({"machine": dict(machine), "quick": quick, "results": rows}, indent=1) + "\n"


def file_name(machine: Machine) -> str:
    """<date>-<GPU or CPU>, in small letters."""
    device = str(machine.get("gpu") or machine["cpu"]).split(",")[0]
    return f"{machine['date']}-{re.sub(r'[^a-z0-9]+', '-', device.lower()).strip('-')}"


# --- rows ---------------------------------------------------------------------------------------


def rows(result: Result) -> str:
    """A line for each contender of one case."""
    return "\n".join(_row(result, name, figure) for name, figure in result.figures.items())


def _row(result: Result, name: str, figure: Figure) -> str:
    case = result.case
    if figure.error or not figure.blocks:
        return (
            f"| {case.name} | {name} | failed: {figure.error[:150].replace('|', '/')} | | | | | |"
        )
    unit = {"bytes": _bytes, "errors": _hundredths}.get(case.unit, _seconds)
    ours = result.figures[case.ours]
    ratio = ""
    if name != case.ours and ours.blocks:
        ratio = f"{ours.minimum / figure.minimum:.3g}, {ours.median / figure.median:.3g}"
    share = ""
    if result.peak_flops.blocks:
        low = case.flops / figure.minimum / max(result.peak_flops.blocks)
        middle = case.flops / figure.median / result.peak_flops.median
        share = f"{low:.1%}, {middle:.1%}"
    step = unit(figure.minimum / case.steps) if case.steps > 1 else ""
    return (
        f"| {case.name} | {name} | {unit(figure.minimum)} | {unit(figure.median)} "
        f"| {figure.spread:.0%} | {step} | {ratio} | {share} |"
    )


def _remarks(results: Sequence[Result]) -> list[str]:
    lines = []
    for result in results:
        lines += [f"- {result.case.name}: NOT THE SAME RESULTS: {x}" for x in result.failed_checks]
        if result.case.note:
            lines.append(f"- {result.case.name}: {result.case.note}")
        lines += [f"- {x}" for x in result.remarks]
    return lines


def _goal_lines(results: Sequence[tuple[str, Result]]) -> list[str]:
    lines = ["| case | threads | goal | measured (min, median) | |", "|---|---|---|---|---|"]
    for _, result in results:
        lines += [_goal_row(result, outcome) for outcome in result.outcomes()]
    return lines


def _goal_row(result: Result, outcome: Outcome) -> str:
    show = {"ratio": _number, "share": _percent}.get(outcome.goal.kind, _seconds)
    verdict = {True: "reached", False: "**not reached**", None: "not measured"}[outcome.reached]
    if result.failed_checks:
        verdict += ", but results differ"
    got = (
        ""
        if math.isnan(outcome.by_median)
        else f"{show(outcome.by_minimum)}, {show(outcome.by_median)}"
    )
    return (
        f"| {result.case.name} | {result.settings.threads} | {_goal_text(outcome.goal)} "
        f"| {got} | {verdict} |"
    )


def _goal_text(goal: Goal) -> str:
    peers = " and ".join(goal.peers)
    if goal.kind == "share":
        return f"at least {goal.limit:.0%} of the peak"
    if goal.kind == "ratio":
        return f"at most {goal.limit:.3g} x {peers}"
    if goal.kind == "beyond":
        return f"at most {_seconds(goal.limit)} more than {peers}"
    return f"at most {_seconds(goal.limit)}"


def _outcome_data(outcome: Outcome) -> dict[str, Any]:
    """As JSON knows it: no NaN."""
    data = dataclasses.asdict(outcome)
    if math.isnan(outcome.by_median):
        data |= {"by_minimum": None, "by_median": None}
    return data


def _machine_lines(machine: Machine) -> list[str]:
    versions = ", ".join(f"{name} {v}" for name, v in machine["versions"].items())
    memory = (
        f"last-level cache {_bytes(machine['last_cache_bytes'])}, "
        f"memory {_bytes(machine['memory_bytes'])}"
    )
    load = ", ".join(f"{x:.1f}" for x in machine["load_at_start"])
    gpu = [f"- GPU: {machine['gpu']}"] if machine.get("gpu") else []
    return [
        *gpu,
        f"- CPU: {machine['cpu']}; {machine['cores']} cores; {memory}",
        f"- System: {machine['system']}, Python {machine['python']}; load at the start {load}",
        f"- Commit: {machine['commit']}",
        f"- Versions: {versions}",
    ]


def _peaks(results: Sequence[tuple[str, Result]]) -> list[str]:
    best: dict[tuple[str, str], float] = {}
    for _, result in results:
        settings = result.settings
        on = "on the GPU" if settings.device == "cuda" else f"on {settings.threads} core(s)"
        key = (result.case.dtype, on)
        best[key] = max([best.get(key, 0.0), *result.peak_flops.blocks])
    return [
        f"- peak measured: {flops * 1e-9:.1f} GFLOP/s in {dtype} {on}"
        for (dtype, on), flops in best.items()
        if flops
    ]


def _threads(count: int) -> str:
    return f"{count} thread{'s' * (count > 1)}"


# --- numbers ------------------------------------------------------------------------------------


def _seconds(value: float) -> str:
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if abs(value) >= scale:
            return f"{value / scale:.3g} {unit}"
    return f"{value * 1e9:.3g} ns"


def _bytes(value: float) -> str:
    return f"{value / (1 << 20):.0f} MiB"


def _percent(value: float) -> str:
    return f"{value:.1%}"


def _hundredths(value: float) -> str:
    return f"{value:.2%}"


def _number(value: float) -> str:
    return f"{value:.3g}"
