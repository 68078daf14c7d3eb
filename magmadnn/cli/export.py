"""magmadnn export: a trained network, with the scaling of its data, as an object file for C and Fortran."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from magmadnn import ops
from magmadnn.data import Preparation
from magmadnn.layers import Input
from magmadnn.tensor import Operation
from magmadnn.training import Model

from .arguments import Parser
from .console import Console
from .trained import open_trained


def parser() -> Parser:
    """The arguments of the command."""
    made = Parser(
        "export",
        "Write a trained network as an object file, with a C header and a Fortran module beside it.\n"
        "It takes the columns of the data in their own units, as double, and gives what\n"
        "magmadnn predict writes: the probability of each class, or the target in its own units.",
    )
    made.add_argument("folder", metavar="DIR", help="output folder of magmadnn train")
    made.add_argument("--out", metavar="FILE.o", required=True, help="where to write")
    made.add_argument("--name", help="what names of functions begin with (that of the file)")
    made.add_argument("--cpu", help="such as x86-64-v3 (the CPU of this machine)")
    made.add_argument("--quiet", action="store_true", help="print nothing but errors")
    return made


def run(argv: Sequence[str]) -> int:
    """Export; returns the exit code.

    Raises:
        MagmaDNNError: if there is no such model, or it cannot be exported.
    """
    arguments = parser().read(argv)
    say = Console(arguments.quiet)
    model, preparation = open_trained(arguments.folder)
    files = with_scaling(model, preparation).export(
        arguments.out, name=arguments.name, cpu=arguments.cpu, note=_note(preparation)
    )
    say("wrote " + ", ".join(map(str, files)))
    return 0


def with_scaling(model: Model, preparation: Preparation) -> Model:
    """The network from inputs in their own units to probabilities, or targets in theirs."""
    raw = Input(preparation.input_shape, "float64")
    scaled = (raw - np.array(preparation.mean)) / np.array(preparation.std)
    if preparation.missing == "mean":
        scaled = ops.where(ops.isnan(scaled), 0.0, scaled)
    found: Operation = model(ops.cast(scaled, model.inputs[0].dtype))
    if preparation.task == "classification":
        found = ops.sigmoid(found) if found.shape[-1] == 1 else ops.softmax(found)
    else:
        values = ops.cast(found, "float64").reshape((-1, *preparation.target_shape))
        found = values * np.array(preparation.target_std) + np.array(preparation.target_mean)
        found = found.reshape((-1, *preparation.target_shape))
    return Model(inputs=[raw], outputs=[found], precision=model.precision)


def _note(preparation: Preparation) -> str:
    """What the numbers mean, for the header."""
    lines = ["Inputs are in their own units; they are scaled inside."]
    schema = preparation.schema
    if schema is not None:
        lines[0] += " An input column=category is 1 in that category, otherwise 0."
        lines += ["", "Inputs of a sample:"]
        lines += [f"{k}: {name}" for k, name in enumerate(schema.inputs)]
    if preparation.missing == "mean":
        lines += ["", "NaN is a missing value, and is replaced by the mean of the training data."]
    if preparation.task == "classification":
        lines += ["", "Outputs of a sample: the probabilities of"]
        lines += [f"{k}: {name}" for k, name in enumerate(preparation.classes)]
    elif names := preparation.target_names:
        lines += ["", f"Output: {', '.join(names)}."]
    return "\n".join(lines)
