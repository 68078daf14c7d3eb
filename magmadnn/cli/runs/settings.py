"""What a training is told: the arguments, completed by a preset, as `run.json` keeps them."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from magmadnn.data._find import places_of
from magmadnn.data.images.folders import BadImages
from magmadnn.data.images.idx import has_idx_files
from magmadnn.data.preparation.targets import Task
from magmadnn.data.tables.reading import Missing
from magmadnn.errors import ArgumentError, CheckpointError, quoted
from magmadnn.models import by_name
from magmadnn.models.caffe.trained import is_description
from magmadnn.storage.places import expanded

_FIELDS = {"lr": "learning_rate"}  # what arguments are called otherwise in presets
_OF_PRESETS = frozenset(
    "hidden activation optimizer lr weight_decay batch_size epochs validation_split augment".split()
)


@dataclass(frozen=True)
class Settings:
    """The arguments of a training.

    Attributes:
        model: name of the network, or of the file that describes it; absolute.
        data: what `magmadnn.data.load` takes; paths are absolute.
        target: names or numbers of a table's target columns.
        ignore: of its columns that are left out.
        features: of its inputs; None: all others.
        categories: of columns of numbers that name categories.
        decimal: sign of numbers in text.
        task: "classification" or "regression"; None: told from the target.
        missing: what is done with missing values of a table.
        test_split: share of the rows that is the test set, where data has none of its own.
        device: auto, cpu or cuda.
        precision: of matrix products; see `magmadnn.Model`.
        seed: of initial values, order, dropout and splits.
        checkpoint_every: steps; None: each epoch and each minute.
        image_size: pixels on each side that files of images are scaled to; None: they are not.
        bad_images: "error" or "skip": what is done with files of images that cannot be decoded.
        pca: how many principal components inputs become; None: they stay.
        augment: "standard" or "none".
        json: where the result is written too; absolute.
        preset: its name.
        refit: whether all training rows are trained on once the epoch is chosen.
        hidden: this and the next: see `magmadnn.models.Preset`.
        lr: its learning_rate.
        data_folder: where MNIST was found.
        data_sha256: of the training rows, so that a run does not go on with other data.
    """

    model: str
    data: str
    target: tuple[str, ...]
    ignore: tuple[str, ...]
    features: tuple[str, ...] | None
    categories: tuple[str, ...]
    decimal: str
    task: Task | None
    missing: Missing | None
    test_split: float
    device: str
    precision: str
    seed: int
    checkpoint_every: int | None
    image_size: int | None
    bad_images: BadImages
    pca: int | None
    augment: Literal["standard", "none"]
    json: str | None
    preset: str
    refit: bool
    hidden: tuple[int, ...]
    activation: str
    optimizer: str
    lr: float
    weight_decay: float | None
    batch_size: int
    epochs: int
    validation_split: float
    dropout: float
    cosine: bool
    data_folder: str | None = None
    data_sha256: str = ""

    @classmethod
    def of(
        cls, arguments: argparse.Namespace, input_shape: Sequence[int] = (), rows: int = 1
    ) -> Settings:
        """The settings that arguments ask for, over those of a preset, over defaults.

        Args:
            arguments: of the command; None where one was not given.
            input_shape: of the data, which chooses the preset where none was named.
            rows: of the training data, which a preset may follow.

        Raises:
            UnknownNameError: for a model or a preset that is not known.
            ArgumentError: for arguments that the model or the data cannot have.
        """
        given = {k: v for k, v in vars(arguments).items() if v is not None}
        network = by_name(given.get("model", "mlp"))
        for option in ("hidden", "activation"):
            if option in given and option not in network.options:
                raise ArgumentError(
                    f"--{option}: the layers of {network.name} are fixed; leave it out, or choose mlp"
                )
        name = given.get("preset", network.default_preset(input_shape))
        preset = network.preset(name)
        split = given.get("validation_split", preset.validation_split)
        chosen = {_FIELDS.get(k, k): v for k, v in given.items() if k in _OF_PRESETS}
        preset = preset.for_rows(trained_rows(rows, split), **chosen)
        values: dict[str, Any] = {f.name: None for f in fields(cls) if f.default is MISSING}
        values |= {"model": network.name, "data": "mnist", "test_split": 0.2}
        values |= {"target": ("-1",), "ignore": (), "categories": (), "decimal": "."}
        values |= {"device": "auto", "precision": "float32", "seed": 0, "refit": False}
        values |= {"bad_images": "error"}
        values |= {"preset": name, "lr": preset.learning_rate}
        values |= {k: v for k, v in vars(preset).items() if k in values}
        values |= {k: v for k, v in given.items() if k in values}
        values["data"] = absolute_data(values["data"])
        values["model"] = network.name  # of a file: absolute
        if len(input_shape) not in (0, 3) and given.get("augment", "none") != "none":
            raise ArgumentError(
                f"--augment {values['augment']}: changes images, and inputs here have the shape "
                f"{tuple(input_shape)}; leave it out"
            )
        if values["json"] is not None:
            values["json"] = str(expanded(values["json"]).absolute())
        return cls(**values)

    def record(self) -> dict[str, Any]:
        """Plain data for `run.json`."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}

    @classmethod
    def from_record(cls, record: Mapping[str, Any], folder: str) -> Settings:
        """The settings that `record` gave.

        Raises:
            CheckpointError: if it is something else.
        """
        names = {f.name for f in fields(cls)}
        if wrong := names.symmetric_difference(record):
            raise CheckpointError(
                f"{folder}: run.json is not of a training of this version: argument {quoted(min(wrong))} "
                "is missing or not known"
            )
        values: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in record.items()
        }
        for name, kind in get_type_hints(cls).items():
            if not _is_of(values[name], kind):
                raise CheckpointError(
                    f"{folder}: run.json is not of a training: argument {name!r} is "
                    f"{_shown(values[name])!r:.80}"
                )
        return cls(**values)

    def check_same(self, arguments: argparse.Namespace) -> None:
        """Arguments beside --resume may repeat what the run was started with.

        Raises:
            ArgumentError: if one says something else.
        """
        for name, value in vars(arguments).items():
            if (
                value is None
                or name in ("resume", "out", "quiet", "json")
                or name not in vars(self)
            ):
                continue
            own = getattr(self, name)
            if _absolute(name, value) != own:
                option = "MODEL" if name == "model" else "--" + name.replace("_", "-")
                said = f"{option} {_shown(value)} contradicts {_shown(own)} of"
                if name == "refit":  # it has no value
                    said = f"{option} was not given to"
                raise ArgumentError(
                    f"{said} the run in {arguments.resume}; leave it out, or start a new run with another "
                    "--out"
                )


def _is_of(value: Any, kind: Any) -> bool:
    """Whether a value is of the type of a field."""
    if get_origin(kind) in (Union, UnionType):
        return any(_is_of(value, one) for one in get_args(kind))
    if get_origin(kind) is Literal:
        return value in get_args(kind)
    if get_origin(kind) is tuple:
        return isinstance(value, tuple) and all(_is_of(v, get_args(kind)[0]) for v in value)
    if kind in (int, float):
        return not isinstance(value, bool) and isinstance(value, (int, kind))
    return isinstance(value, kind)


def trained_rows(rows: int, validation_split: float) -> int:
    """How many of the training rows are not kept back for validation."""
    return (
        rows - min(max(round(rows * validation_split), 1), rows - 1) if validation_split else rows
    )


def _absolute(name: str, value: Any) -> Any:
    """The value of an argument as settings keep it: paths are absolute."""
    if name == "model" and is_description(value):
        return str(expanded(value).absolute())
    return absolute_data(value) if name == "data" else value


def _shown(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def absolute_data(data: str) -> str:
    """What names the data, such that it holds in any working folder; `mnist` stays a name."""
    return data if data == "mnist" else str(expanded(data).absolute())


def mnist_folder() -> str | None:
    """Where MNIST lies; None if it is not found."""
    places = places_of("mnist", None)
    return next((str(p.absolute()) for p in places if p.is_dir() and has_idx_files(p)), None)
