"""A search from the command line: its data, its study, the network that was best, and its figures."""

from __future__ import annotations

import json
import os
import time
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

from magmadnn import search
from magmadnn.cli.console import Console
from magmadnn.cli.ending import Terminated
from magmadnn.cli.runs.fitting import build_model, metrics_of
from magmadnn.cli.runs.outputs import MODEL, as_json, check_new
from magmadnn.cli.runs.run_rows import Loader, check_same_rows, fingerprint, loader_of
from magmadnn.cli.runs.settings import Settings, mnist_folder
from magmadnn.cli.runs.training_run import check_device, load_data
from magmadnn.cli.runs.units import figures
from magmadnn.data import Dataset
from magmadnn.errors import ArgumentError, NumericError
from magmadnn.models.baselines import classification_baselines
from magmadnn.search.study_folder import STUDY
from magmadnn.storage.disk import is_there
from magmadnn.storage.durable import write_file
from magmadnn.storage.places import expanded
from magmadnn.storage.run_folder import check_links, create_run, read_run
from magmadnn.training.model.saving import save_model

from .going_on import RESULT, TABLE, said_of, taken_up
from .search_arguments import OWN, SearchArguments, objective_of
from .search_checks import check_job, check_metrics, check_search
from .space_files import options_of, read_space

_SHARE = 0.2  # that validates where the preset keeps nothing back
_BESIDE = ("space", "out", "resume", "mpi", "quiet", "threads", "loader_workers", *OWN)


def start_search(arguments: Namespace, say: Console) -> int:
    """A new search; returns the exit code.

    Raises:
        MagmaDNNError: if something is wrong with arguments, space, data or the folder.
    """
    if arguments.space is None:
        raise ArgumentError("--space is missing: give the TOML file of what is searched")
    space = read_space(arguments.space)
    out = expanded(arguments.out or f"runs/{time.strftime('%Y-%m-%d_%H-%M-%S')}-search")
    check_new("--out", out, "another --out, or go on with the search there by --resume")
    given = {k: v for k, v in vars(arguments).items() if v is not None and k not in _BESIDE}
    if twice := [name for name in space.dimensions if name in given]:
        raise ArgumentError(f"--{twice[0].replace('_', '-')}: is in the space too; leave one out")
    settings = Settings.of(Namespace(**given))
    own = {name: getattr(arguments, name) for name in OWN}
    made = SearchArguments(settings, given, space, {**own, "method": own["method"] or "random"})
    check_search(made, arguments.space)
    check_job(made, arguments.mpi)
    check_device(settings.device)
    data = load_data(settings, settings.data, say, loader_of(arguments))
    shape, rows = data.preparation.prepared_shape, len(data.x_train)
    if not Settings.of(Namespace(**given), shape, rows).validation_split:  # of a preset
        given.setdefault("validation_split", _SHARE)
    settings = replace(
        Settings.of(Namespace(**given), shape, rows),
        data_sha256=fingerprint(data),
        data_folder=mnist_folder() if settings.data == "mnist" else None,
    )
    if "model" in given:
        given["model"] = settings.model  # of a file: absolute
    if not settings.validation_split:
        raise ArgumentError(
            "--validation-split 0: trials are compared on rows that are kept back; give a share above 0"
        )
    made = replace(made, settings=settings)
    check_metrics(made, metrics_of(data))
    create_run(out, made.record())
    if arguments.mpi is not None:
        return _by_mpi(out, made, arguments.mpi, say)
    return _go(out, made, data, say)


def resume_search(arguments: Namespace, say: Console) -> int:
    """Go on with the search in a folder, or say that it has ended; returns the exit code.

    Raises:
        MagmaDNNError: if there is no such search, arguments contradict its own, or it cannot go on.
    """
    folder = expanded(arguments.resume)
    made, ended = taken_up(folder, arguments)
    if ended is not None:
        say(said_of(ended, made, folder))
        return 0
    check_links(folder)
    check_job(made, arguments.mpi)
    if arguments.mpi is not None:
        return _by_mpi(folder, made, arguments.mpi, say)
    settings = made.settings
    check_device(settings.device)
    source = settings.data_folder or settings.data
    data = load_data(settings, source, say, loader_of(arguments))
    check_same_rows(data, settings, source, str(folder), "restore the data, or start a new search")
    check_metrics(made, metrics_of(data))
    return _go(folder, made, data, say)


def _by_mpi(folder: Path, made: SearchArguments, ranks: int, say: Console) -> int:
    """Search in a job of MPI: one rank hands out points, the others train."""
    from magmadnn.workflow import Workflow

    job = Workflow("search")
    seen = os.environ.get("CUDA_VISIBLE_DEVICES")
    text = json.dumps({"own": dict(made.own), "quiet": say.quiet, "gpus": seen})
    job.add_module(
        "magmadnn.cli.searches.search_run:search_on_ranks",
        "search",
        ranks=ranks + 1,
        args=[str(folder.absolute()), text],
    )
    place = folder / ".jobs"  # the study is the only thing to be seen
    place.mkdir(exist_ok=True)
    number = sum(1 for _ in place.iterdir())
    say(f"output in {folder}")
    finished = job.run(place / str(number))
    assert finished is not None
    log = finished.folder / "modules" / "search.0" / "rank-0.log"
    say(log.read_text(encoding="utf-8").rstrip())
    return 0


def search_on_ranks(context: Any) -> None:
    """The module of a search in a job of MPI; every rank runs it."""
    from magmadnn.workflow.searches import on_ranks_of

    folder = Path(context.args[0])
    more = json.loads(context.args[1])
    # A module that asks for no GPUs sees none; ranks of a search share those of the job.
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    if more["gpus"] is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = more["gpus"]
    made = replace(SearchArguments.from_record(read_run(folder), str(folder)), own=more["own"])
    settings = made.settings
    say = Console(more["quiet"] or context.rank > 0)
    source = settings.data_folder or settings.data
    data = load_data(settings, source, say, Loader(decode="memory"))
    with on_ranks_of(context):
        _go(folder, made, data, say)


def _go(folder: Path, made: SearchArguments, data: Dataset, say: Console) -> int:
    """Search, and write what comes of it."""
    settings, own = made.settings, made.own
    data = data.keeping_back(settings.validation_split, settings.seed)
    shape, rows = data.preparation.prepared_shape, len(data.x_train)

    def build(
        seed: int,
        epochs: int = settings.epochs,
        batch_size: int = settings.batch_size,
        **point: Any,
    ) -> Any:
        chosen = options_of(point, settings.hidden)
        options = Namespace(
            **{**made.given, **vars(chosen), "epochs": epochs, "batch_size": batch_size}
        )
        return build_model(replace(Settings.of(options, shape, rows), seed=seed), data)

    # Tables are prepared by each training, so that several can be trained in one call; images once, since
    # they are large.
    raw = len(data.preparation.input_shape) < 2
    options: dict[str, Any] = {} if raw else {"prepared": True}
    if settings.augment != "none":
        options["augment"] = settings.augment
    say(f"\n{settings.model}, {own['method']}: {_space_words(made)}")
    say(f"output in {folder}")
    try:
        study = search.run(
            build,
            dict(made.space.dimensions),
            *((data.x_train, data.y_train) if raw else data.train()),
            method=own["method"],
            objective=_objective(own["objective"], data),
            trials=own["trials"],
            epochs=settings.epochs,
            batch_size=settings.batch_size,
            until=made.until,
            total_epochs=own["total_epochs"],
            total_seconds=own["total_seconds"],
            validation_split=settings.validation_split,
            out=folder,
            resume=is_there(folder / STUDY),
            seed=settings.seed,
            workers=own["workers"],
            trial_seconds=own["trial_seconds"],
            fit_options=options,
            method_options=made.method_options,
            verbose=not say.quiet,
        )
    except (KeyboardInterrupt, Terminated):
        say(f"what has ended is kept; go on with: magmadnn search --resume {folder}")
        raise
    try:
        result = _result(study, folder, data, say)
    except NumericError:  # no trial has a value; the table says why
        study.table().to_csv(folder / TABLE)
        raise
    write_file(folder / RESULT, as_json(result))
    study.table().to_csv(folder / TABLE)  # last: by it a later call sees that all is written
    say(f"table in {folder / TABLE}; pictures: magmadnn search report {folder}")
    return 0


def _result(study: search.Study, folder: Path, data: Dataset, say: Console) -> dict[str, Any]:
    """The best network is written, and its figures on the test rows, which no trial has seen."""
    counts = {"trials": len(study.trials), "failed": sum(not t.values for t in study.trials)}
    if len(study.objectives) > 1:
        numbers = [trial.number for trial in study.pareto()]
        say(f"trials that no other one is better than: {', '.join(map(str, numbers))}")
        return {**counts, "front": " ".join(map(str, numbers))}
    best = study.best
    model = study.model()
    save_model(model, folder / MODEL)
    test = figures(model, data.preparation, *data.test(), data.y_test)
    result = {
        **counts,
        "best_trial": best.number,
        **{f"validation_{k}": v for k, v in best.metrics.items() if not k.startswith("train_")},
        **{f"test_{name}": value for name, value in test.items()},
        **{f"best_{name}": str(value) for name, value in best.point.items()},
        "parameters_sha256": best.parameters_sha256,
    }
    shown = ", ".join(f"{n} {v:.5g}" for n, v in result.items() if n.startswith("test_"))
    say(f"the best is trial {best.number}; on the test rows: {shown}")
    if data.preparation.task == "classification" and len(data.preparation.prepared_shape) == 1:
        (x, y), (xt, yt) = data.train(), data.test()
        simple = classification_baselines(x, y, xt, yt, len(data.preparation.classes))
        named = ", ".join(f"{name} {value:.4f}" for name, value in simple.items())
        say(f"simple methods on the same rows: {named}")
    return result


def _objective(text: str | None, data: Dataset) -> Any:
    """What is searched for: names with commas between; accuracy of classes, the loss of quantities."""
    if text is None:
        return "accuracy" if data.preparation.classes else "loss"
    return objective_of(text)


def _space_words(made: SearchArguments) -> str:
    return ", ".join(f"{name} {one.text}" for name, one in made.space.dimensions.items())
