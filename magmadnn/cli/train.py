"""magmadnn train: a network on data, from the first step or from the last checkpoint."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from magmadnn.data.targets import TASKS
from magmadnn.errors import ArgumentError
from magmadnn.layers.activations import ACTIVATIONS
from magmadnn.models import NETWORKS
from magmadnn.optim import by_name as optimizer_by_name

from .arguments import AT_LEAST_0, RATE, SHARE, SHARE_OR_0, Parser, one_of, sizes, whole
from .console import Console
from .training_run import resume_run, start_run


def parser() -> Parser:
    """The arguments of the command."""
    made = Parser(
        "train", "Train a network, and keep all that comes of it in a folder.", _presets()
    )
    made.add_argument("model", nargs="?", metavar="MODEL", help="network (default: mlp)")
    add = made.add_argument_group("data").add_argument
    add("--data", metavar="DATA", help="mnist (default); a folder with IDX files or CIFAR-10 batches; a table in a text file; an .npz file")  # fmt: skip
    add("--target", metavar="COLUMN", help="of a table: name or number from 0, or from the end if negative (default: -1)")  # fmt: skip
    add("--task", type=one_of("task", TASKS), metavar="TASK", help="classification or regression (default: told from the target)")  # fmt: skip
    add("--missing", type=one_of("way", ("mean", "drop")), metavar="mean|drop", help="missing values: fill in the mean, or leave out the row (default: an error)")  # fmt: skip
    add("--validation-split", type=SHARE_OR_0, metavar="X", help="share of the training rows kept back to validate after each epoch")  # fmt: skip
    add("--test-split", type=SHARE, metavar="X", help="share of the rows kept back for the test, where data has no test set (default: 0.2)")  # fmt: skip
    add = made.add_argument_group("network and training (defaults: the preset's)").add_argument
    add("--preset", metavar="NAME", help="all of the following at once; see below")
    add("--hidden", type=sizes, metavar="528,528,528", help="sizes of the hidden layers")
    add("--activation", type=one_of("activation", ACTIVATIONS), metavar="NAME", help="of the hidden layers")  # fmt: skip
    add("--optimizer", type=_optimizer, metavar="NAME", help="sgd, adam, adamw, rmsprop, adagrad, lars, lamb")  # fmt: skip
    add("--lr", type=RATE, metavar="X", help="learning rate at the first step")
    add("--weight-decay", type=AT_LEAST_0, metavar="X", help="of the optimiser")
    add("--batch-size", type=whole(1), metavar="N", help="samples of a step")
    add("--epochs", type=whole(1), metavar="N", help="passes over the training rows")
    add("--device", type=one_of("device", ("auto", "cpu", "cuda")), metavar="auto|cpu|cuda", help="where to compute (default: auto)")  # fmt: skip
    add("--seed", type=whole(0), metavar="N", help="of initial values, order, dropout and splits (default: 0)")  # fmt: skip
    add = made.add_argument_group("output").add_argument
    add("--out", metavar="DIR", help="new folder for the run (default: runs/<time>-<model>)")
    add("--checkpoint-every", type=whole(1), metavar="N", help="steps (default: each epoch and each minute)")  # fmt: skip
    add("--resume", metavar="DIR", help="go on with the run in DIR, with the arguments it was started with")  # fmt: skip
    add("--json", metavar="FILE", help="write the result to FILE too")
    add("--quiet", action="store_true", help="print nothing but errors")
    return made


def run(argv: Sequence[str]) -> int:
    """Train; returns the exit code.

    Raises:
        MagmaDNNError: whatever is wrong with arguments, data or disk.
    """
    arguments = parser().read(argv)
    say = Console(arguments.quiet)
    return start_run(arguments, say) if arguments.resume is None else resume_run(arguments, say)


def _optimizer(text: str) -> str:
    try:
        optimizer_by_name(text)
    except ArgumentError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text.lower()


def _presets() -> str:
    """What the help says about networks and their presets."""
    lines = []
    for network in NETWORKS.values():
        lines.append(f"{network.name}: {network.about}. Its presets:")
        for name, preset in network.presets.items():
            use = {network.image_preset: "default for images; "}
            use |= {network.table_preset: "default for tables; "}
            hidden = ",".join(map(str, preset.hidden))
            lines.append(f"  {name.ljust(6)} {use.get(name, '')}{preset.about}")
            lines.append(
                f"         --hidden {hidden} --activation {preset.activation} "
                f"--optimizer {preset.optimizer} --lr {preset.learning_rate:g}"
            )
            decay = f" --weight-decay {preset.weight_decay:g}" if preset.weight_decay else ""
            lines.append(
                f"         --batch-size {preset.batch_size} --epochs {preset.epochs} "
                f"--validation-split {preset.validation_split:g}{decay}"
            )
            more = [f"dropout {preset.dropout:g}"] if preset.dropout else []
            more += ["the learning rate falls to 0 along a cosine"] if preset.cosine else []
            lines += [f"         {', '.join(more)}"] if more else []
    return "\n".join(lines)
