"""The command line that all benchmarks share."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from . import report
from .cases import Claim, Device, Result, Settings
from .machine import cores, description
from .race import measured

RESULTS = Path(__file__).resolve().parents[1] / "results"


def main(
    claims: Mapping[str, Callable[[Settings], Claim]],
    *,
    save: bool = False,
    device: Device = "cpu",
) -> None:
    """Measure claims, by the names of their files, as the command line says, and print tables."""
    options = _options(save)
    names = options.only.split(",") if save and options.only else list(claims)
    if unknown := [name for name in names if name not in claims]:
        sys.exit(f"benchmarks: no file {unknown[0]!r}; there are {', '.join(claims)}")
    if too_many := [n for n in options.threads if n > len(cores())]:
        sys.exit(f"benchmarks: --threads {too_many[0]} is more than the {len(cores())} cores here")
    machine, results = description(device), list[tuple[str, Result]]()
    for threads in options.threads:
        settings = _settings(options, threads, device)
        for name in names:
            claim = claims[name](settings)
            cases = [case.without(options.without) for case in claim.cases]
            claim = replace(claim, cases=[c for c in cases if _is_wanted(c.name, options.match)])
            if not claim.cases:
                continue
            found = measured(claim, settings)
            results += [(claim.title, result) for result in found]
            if claim.summary is not None:
                found[-1].remarks += claim.summary(found)
            print(report.section(claim.title, threads, found), flush=True)
    if save:
        _save(options, machine, results)


def _is_wanted(name: str, texts: Sequence[str]) -> bool:
    """Whether a case's name has one of the texts; any has where there are none."""
    return not texts or any(text in name for text in texts)


def _save(
    options: argparse.Namespace, machine: report.Machine, results: list[tuple[str, Result]]
) -> None:
    text = report.page(machine, results, options.quick)
    print(text)
    folder = Path(options.out)
    folder.mkdir(parents=True, exist_ok=True)
    name = folder / (report.file_name(machine) + ("-quick" if options.quick else ""))
    name.with_name(name.name + ".md").write_text(text, encoding="utf-8")
    name.with_name(name.name + ".json").write_text(
        report.as_json(machine, results, options.quick), encoding="utf-8"
    )
    print(f"benchmarks: wrote {name}.md and .json", file=sys.stderr)


def _options(save: bool) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__)
    parser.add_argument(
        "--threads", type=_numbers, default=[len(cores())],
        help="cores of each contender; several with commas, as in 1,2 (default: all)",
    )  # fmt: skip
    parser.add_argument("--blocks", type=int, help="how often contenders take turns (default: 7)")
    parser.add_argument("--seconds", type=float, help="of a block at least (default: 0.3)")
    parser.add_argument(
        "--match", action="append", default=[], metavar="TEXT",
        help="only cases with this text in their name; may be given several times",
    )  # fmt: skip
    parser.add_argument(
        "--without", action="append", default=[], metavar="PEER",
        help="leave out a contender, as in --without torch.compile, whose compiling takes minutes",
    )  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="try everything on small sizes")
    if save:
        parser.add_argument("--out", default=str(RESULTS), help="folder for the results")
        parser.add_argument("--only", help="files to run, with commas, as in predict,first_step")
    return parser.parse_args()


def _settings(options: argparse.Namespace, threads: int, device: Device) -> Settings:
    blocks = options.blocks or (2 if options.quick else 7)
    seconds = options.seconds or (0.02 if options.quick else 0.3)
    return Settings(threads, blocks, seconds, options.quick, device)


def _numbers(text: str) -> list[int]:
    numbers = [int(part) for part in text.split(",")]
    if min(numbers) < 1:
        raise ValueError(text)
    return numbers
