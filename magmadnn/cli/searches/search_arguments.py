"""What a search was told, completed, as `run.json` keeps it."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from magmadnn.cli.runs.settings import Settings
from magmadnn.errors import ArgumentError, CheckpointError
from magmadnn.search.objectives import Reaches, reaches
from magmadnn.search.spaces.space import Space, space_of_plain
from magmadnn.search.study_plan import Ends

OWN = (
    *("method", "objective", "trials", "until", "total_epochs", "total_seconds", "trial_seconds"),
    *("workers", "eta", "cohort"),
)


@dataclass(frozen=True)
class SearchArguments:
    """The arguments of a search.

    Attributes:
        settings: of a training, where the space says nothing else.
        given: the options of a training that were given, which hold for every point.
        space: what is searched.
        own: options of the search itself, by name; None where one was not given.
    """

    settings: Settings
    given: Mapping[str, Any]
    space: Space
    own: Mapping[str, Any]

    @property
    def until(self) -> Reaches | None:
        """When the search may end.

        Raises:
            ArgumentError: the option is not of the form `accuracy=0.98`.
        """
        text = self.own["until"]
        if text is None:
            return None
        name, _sign, value = text.partition("=")
        try:
            return reaches(name.strip(), float(value))
        except ValueError as error:
            raise ArgumentError(
                f"--until must be a metric and a value, such as accuracy=0.98, got {text!r}"
            ) from error

    @property
    def ends(self) -> Ends:
        """When the search ends.

        Raises:
            ArgumentError: as for `until`.
        """
        return Ends(self.own["trials"], self.own["total_epochs"], self.until)

    def ending(self, ends: Ends) -> SearchArguments:
        """The same search, which ends otherwise."""
        until = None if ends.until is None else f"{ends.until.metric}={ends.until.value!r}"
        new = {"trials": ends.trials, "total_epochs": ends.total_epochs, "until": until}
        return replace(self, own={**self.own, **new})

    @property
    def method_options(self) -> dict[str, Any]:
        """Those that were given."""
        return {name: self.own[name] for name in ("eta", "cohort") if self.own[name] is not None}

    def record(self) -> dict[str, Any]:
        """Plain data for `run.json`."""
        given = {k: list(v) if isinstance(v, tuple) else v for k, v in self.given.items()}
        return {
            "command": "search",
            "training": self.settings.record(),
            "given": given,
            "space": self.space.plain(),
            "own": dict(self.own),
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any], folder: str) -> SearchArguments:
        """The arguments that `record` gave.

        Raises:
            CheckpointError: if it is something else.
        """
        if record.get("command") != "search" or set(record.get("own", ())) != set(OWN):
            raise CheckpointError(f"{folder}: run.json is not of a search of this version")
        given = {k: tuple(v) if isinstance(v, list) else v for k, v in record["given"].items()}
        return cls(
            Settings.from_record(record["training"], folder),
            given,
            space_of_plain(record["space"]),
            record["own"],
        )

    def changed(self, arguments: Namespace) -> SearchArguments:
        """With what may be said anew where a search goes on: ends, limits and workers.

        Raises:
            ArgumentError: something else was said too; for successive halving also other `trials`.
        """
        free = ("trials", "until", "total_epochs", "total_seconds", "trial_seconds", "workers")
        new = {k: v for k, v in vars(arguments).items() if v is not None and k not in _BESIDE}
        for name in new:
            if name not in free:
                option = "MODEL" if name == "model" else "--" + name.replace("_", "-")
                raise ArgumentError(
                    f"{option} cannot be changed where a search goes on; leave it out, or begin another with "
                    "--out"
                )
        if self.own["method"] == "halving" and new.get("trials") not in (None, self.own["trials"]):
            raise ArgumentError(
                f"--trials {new['trials']}: halving plans all of its {self.own['trials']} trials at the "
                "start, so their number cannot be changed; leave it out, or begin another with --out"
            )
        return replace(self, own={**self.own, **new})


def objective_of(text: str) -> str | list[str]:
    """What `--objective` names: a metric, or several with commas between."""
    names = [name.strip() for name in text.split(",")]
    return names if len(names) > 1 else names[0]


_BESIDE = ("resume", "mpi", "quiet", "threads", "loader_workers")
