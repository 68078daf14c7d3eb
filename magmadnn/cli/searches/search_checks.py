"""What a search was told, looked at before its folder is made; messages name what the user typed."""

from __future__ import annotations

from collections.abc import Sequence
from inspect import signature

from magmadnn.errors import ArgumentError, UnknownNameError
from magmadnn.models import by_name
from magmadnn.search.methods.choosing import METHODS, method_of
from magmadnn.search.objectives import objectives_of

from .search_arguments import SearchArguments, objective_of

_OF_METHODS = ("eta", "cohort")
_OF_LAYERS = dict.fromkeys(("hidden", "units", "layers"), "hidden") | {"activation": "activation"}
_BY_RUNGS = ("halving", "asha", "median")  # they decide on epochs
_TIMES = ("epochs", "seconds")  # measured of each trial; less is better
_NO_DIRECTION = ("sharing_seconds",)


def check_search(made: SearchArguments, file: str) -> None:
    """Look whether the options of a search fit each other and its space.

    Args:
        made: the arguments.
        file: how messages name the file of the space.

    Raises:
        ArgumentError: an option is malformed, or does not fit the method or the space.
        MissingExtraError: the method needs a library that is not there.
    """
    method = made.own["method"]
    _check_method_options(made)
    ends = made.ends  # which reads --until
    if method == "halving" and ends.trials is None:
        raise ArgumentError(
            "--method halving compares all trials with each other, so their number has to be known; give "
            "--trials 81"
        )
    said = (ends.trials, ends.total_epochs, ends.until, made.own["total_seconds"])
    if method != "grid" and said == (None,) * 4:
        raise ArgumentError(
            f"--method {method} has no end of its own; give --trials 100, or --until, --total-epochs or "
            "--total-seconds"
        )
    if method in _BY_RUNGS and "epochs" in made.space.dimensions:
        raise ArgumentError(
            f"--space {file}: epochs: --method {method} decides how many epochs a trial has; leave it out, "
            "and give --epochs for those that go to the end"
        )
    network = by_name(made.settings.model)
    for name, one in made.space.dimensions.items():
        if name in _OF_LAYERS and _OF_LAYERS[name] not in network.options:
            raise ArgumentError(
                f"--space {file}: {name}: the layers of {network.name} are fixed; leave it out, or choose mlp"
            )
        if method == "grid" and one.gridded.count is None:
            raise ArgumentError(
                f"--space {file}: {name} is a range of real numbers, {one.text}, which has no points for "
                f"--method grid; give {name} = {{start = 0.0, stop = 0.1, step = 0.02}} or {{choice = "
                "[...]}, or --method random"
            )
    method_of(method, made.space, 0, ends.trials, made.method_options).check()


def check_ranks(made: SearchArguments, ranks: int | None) -> None:
    """Look whether `--mpi` stands beside options that it replaces.

    Raises:
        ArgumentError: if it does.
    """
    if ranks is not None and (made.own["workers"], made.own["trial_seconds"]) != (None, None):
        raise ArgumentError("--mpi: ranks train, so leave --workers and --trial-seconds out")


def check_metrics(made: SearchArguments, metrics: Sequence[str]) -> None:
    """Look whether objectives and `--until` are metrics that there will be.

    Args:
        made: the arguments.
        metrics: that models of this data have, beside the loss.

    Raises:
        UnknownNameError: one is not; says the nearest name.
        ArgumentError: whether low or high is better is not known, or a name is there twice.
    """
    directed = ("loss", *metrics, *_TIMES)
    others = (*(f"train_{name}" for name in directed if name not in _TIMES), *_NO_DIRECTION)
    text = made.own["objective"]
    if text is not None:
        names = objective_of(text)
        try:
            found = objectives_of(names)
        except ArgumentError as error:
            raise ArgumentError(
                f"--objective {text}: expected one metric, or several of different names with commas between"
            ) from error
        for one in found:
            _check_known("--objective", one.name, (*directed, *others))
            if one.name in others and not one.sign:
                raise ArgumentError(
                    f"--objective {one.name}: whether low or high is better is not known; give "
                    f'"min {one.name}" or "max {one.name}"'
                )
    if made.until is not None:
        _check_known("--until", made.until.metric, directed)


def _check_known(option: str, name: str, known: Sequence[str]) -> None:
    if name not in known:
        raise UnknownNameError.of(f"{option}: metric", name, known)


def _check_method_options(made: SearchArguments) -> None:
    """Refuse an option that the method does not have."""
    method = made.own["method"]
    for option in made.method_options:
        if option not in signature(METHODS[method]).parameters:
            having = ", ".join(n for n, c in METHODS.items() if option in signature(c).parameters)
            raise ArgumentError(
                f"--{option} {made.own[option]}: --method {method} has no such option; leave it out, or give "
                f"a --method that has it: {having}"
            )
