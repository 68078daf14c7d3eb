"""What a search was told, looked at before its folder is made; messages name what the user typed."""

from __future__ import annotations

from collections.abc import Sequence

from magmadnn.errors import ArgumentError
from magmadnn.models import by_name
from magmadnn.search.given import check_ranks
from magmadnn.search.methods.choosing import check_ends, method_of
from magmadnn.search.objectives import check_measured, objectives_of

from .option_spelling import OptionSpelling
from .search_arguments import SearchArguments, objective_of

_OF_LAYERS = dict.fromkeys(("hidden", "units", "layers"), "hidden") | {"activation": "activation"}
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
    method, spelled = made.own["method"], OptionSpelling(file)
    ends = made.ends  # which reads --until
    chosen = method_of(method, made.space, 0, ends.trials, made.method_options, spelled)
    others = {"until": ends.until, "total_epochs": ends.total_epochs}
    others["total_seconds"] = made.own["total_seconds"]
    check_ends(method, ends.trials, others, spelled)
    network = by_name(made.settings.model)
    for name in made.space.dimensions:
        if name in _OF_LAYERS and _OF_LAYERS[name] not in network.options:
            raise ArgumentError(
                f"--space {file}: {name}: the layers of {network.name} are fixed; leave it out, or choose mlp"
            )
    chosen.check()


def check_job(made: SearchArguments, ranks: int | None) -> None:
    """Look whether `--mpi` stands beside options that it replaces.

    Raises:
        ArgumentError: if it does.
    """
    if ranks is not None:
        check_ranks(made.own["workers"], made.own["trial_seconds"], OptionSpelling())


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
    try:
        objectives = objectives_of(None if text is None else objective_of(text))
    except ArgumentError as error:
        raise ArgumentError(
            f"--objective {text}: expected one metric, or several of different names with commas between"
        ) from error
    rises = {**dict.fromkeys(directed, True), **dict.fromkeys(others)}
    check_measured(objectives, made.until, rises, OptionSpelling())
