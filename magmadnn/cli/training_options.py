"""Options of commands that train: data, network, where to compute; `train` and `search` have them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from magmadnn.compiler.program.precision import PRECISIONS
from magmadnn.data.augment.pipeline import NAMES as AUGMENTS
from magmadnn.data.images.folders import MOST_SIZE
from magmadnn.data.preparation.targets import TASKS
from magmadnn.layers.activations import ACTIVATIONS
from magmadnn.models import NETWORKS, Network, Preset

from .arguments import AT_LEAST_0, RATE, SHARE, SHARE_OR_0, Parser, columns, one_of, sizes, whole

OPTIMIZERS = "sgd adam adamw rmsprop adagrad lars lamb".split()  # those that need no settings


def _optimizer(text: str) -> str:
    return one_of("optimiser", OPTIMIZERS)(text.lower())


Option = tuple[str, Callable[[str], Any], str, str]  # name, reader, what stands for its value, help

DATA: tuple[Option, ...] = (
    (
        "--data",
        str,
        "DATA",
        "mnist (default); a folder with IDX files, CIFAR batches or images; a table as text; .npz; .h5",
    ),
    (
        "--target",
        columns,
        "COLUMN,...",
        "of a table: its name, or its number from 0, or from the end if negative (default: -1)",
    ),
    ("--ignore", columns, "COLUMN,...", "of a table: columns to leave out"),
    (
        "--features",
        columns,
        "COLUMN,...",
        "of a table: the inputs (default: all columns, but for those that only number the rows)",
    ),
    (
        "--categories",
        columns,
        "COLUMN,...",
        "of a table: numbers that name categories (default: texts are categories)",
    ),
    (
        "--decimal",
        one_of("decimal sign", (".", ",")),
        ".|,",
        "decimal sign of numbers in text (default: .)",
    ),
    (
        "--task",
        one_of("task", TASKS),
        "TASK",
        "classification or regression (default: told from the target)",
    ),
    (
        "--missing",
        one_of("way", ("mean", "drop")),
        "mean|drop",
        "fill missing values with the mean, or leave their rows out (default: they are an error)",
    ),
    (
        "--image-size",
        whole(1, MOST_SIZE),
        "N",
        "of a folder of images: scale each to N x N: its shorter side to N, then the middle",
    ),
    (
        "--pca",
        whole(1),
        "N",
        "turn inputs into their first N principal components, those of the training rows",
    ),
    (
        "--augment",
        one_of("augmentation", AUGMENTS),
        "standard|none",
        "standard: images are moved by up to an eighth, colour images mirrored too (default: the preset's)",
    ),
    (
        "--validation-split",
        SHARE_OR_0,
        "X",
        "share of the training rows kept back, by which the best epoch is kept (default: the preset's)",
    ),
    (
        "--test-split",
        SHARE,
        "X",
        "share of the rows that is the test set, where data has none of its own (default: 0.2)",
    ),
)
NETWORK: tuple[Option, ...] = (
    ("--preset", str, "NAME", "all of the following at once; see below"),
    ("--hidden", sizes, "528,528,528", "sizes of the hidden layers"),
    ("--activation", one_of("activation", ACTIVATIONS), "NAME", "of the hidden layers"),
    ("--optimizer", _optimizer, "NAME", "sgd, adam, adamw, rmsprop, adagrad, lars or lamb"),
    ("--lr", RATE, "X", "learning rate of the first step"),
    ("--weight-decay", AT_LEAST_0, "X", "of the optimiser"),
    ("--batch-size", whole(1), "N", "samples of a step"),
    ("--epochs", whole(1), "N", "passes over the training rows"),
)
MACHINE: tuple[Option, ...] = (
    (
        "--device",
        one_of("device", ("auto", "cpu", "cuda")),
        "auto|cpu|cuda",
        "where to compute: a GPU where there is one, unless said otherwise (default: auto)",
    ),
    (
        "--precision",
        one_of("precision", PRECISIONS),
        "NAME",
        "of matrix products: float32, tf32, mixed_bf16, mixed_fp16 or float64 (default: float32)",
    ),
    ("--seed", whole(0), "N", "of initial values, order, dropout and splits (default: 0)"),
)


def add_options(made: Parser, title: str, options: tuple[Option, ...], streams: bool = True) -> Any:
    """Add a group of options to a parser; the group. See `Parser.add_images` for `streams`."""
    group = made.add_argument_group(title)
    for name, reader, metavar, about in options:
        group.add_argument(name, type=reader, metavar=metavar, help=about)
    if options is DATA:
        made.add_images(group, streams)
    return group


def presets_text() -> str:
    """What the help says about networks and presets; neighbours with equal ones share the lines."""
    groups = []
    for presets, networks in itertools.groupby(NETWORKS.values(), _preset_lines):
        names = [f"{network.name}: {network.about}" for network in networks]
        groups.append("\n".join([*names, *presets]))
    return "\n\n".join(groups)


def _preset_lines(network: Network) -> list[str]:
    lines = []
    for name, preset in network.presets.items():
        use = {}
        if network.table_preset is not None:
            use = {network.image_preset: "images", network.table_preset: "tables"}
        default = f"default for {use[name]}; " if name in use else ""
        lines.append(f"  preset {name.ljust(6)} {default}{preset.about}")
        lines += [f"         {line}" for line in _words(network, preset)]
    return lines


def _words(network: Network, preset: Preset) -> list[str]:
    """The options that a preset stands for."""
    network_own = {
        "hidden": f"--hidden {','.join(map(str, preset.hidden))} ",
        "activation": f"--activation {preset.activation} ",
    }
    own = "".join(words for name, words in network_own.items() if name in network.options)
    decay = f" --weight-decay {preset.weight_decay:g}" if preset.weight_decay else ""
    epochs = f" --epochs {preset.epochs}" if preset.steps is None else ""
    augment = f" --augment {preset.augment}" if preset.augment != "none" else ""
    rows = f"--validation-split {preset.validation_split:g}{decay}{augment}"
    more = [f"dropout {preset.dropout:g}"] if preset.dropout else []
    more += ["the learning rate falls to 0 along a cosine"] if preset.cosine else []
    if preset.steps is not None:
        more += [
            f"these for {preset.rows:,} rows; epochs make {preset.steps:,} steps, more for more rows"
        ]
    return [
        f"{own}--optimizer {preset.optimizer} --lr {preset.learning_rate:g}",
        f"--batch-size {preset.batch_size}{epochs} {rows}",
        *([", ".join(more)] if more else []),
    ]
