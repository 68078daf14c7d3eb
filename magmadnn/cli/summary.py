"""magmadnn summary: the layers of a network that has a name, or of one that was trained."""

from __future__ import annotations

from collections.abc import Sequence

from magmadnn.data import Preparation
from magmadnn.errors import UnknownNameError
from magmadnn.models import NETWORKS, Network
from magmadnn.storage.disk import is_folder
from magmadnn.storage.places import expanded
from magmadnn.training.model.summary import summary_text

from .arguments import Parser
from .runs.trained import open_trained

_SHAPES = {
    "mnist": ((28, 28, 1), 10, "MNIST"),
    "cifar": ((32, 32, 3), 10, "CIFAR-10"),
    "photographs": ((224, 224, 3), 1000, "photographs of 224 x 224 and 1,000 classes"),
    "table": ((10,), 1, "10 columns and one number"),
}
_SHOWN = 10  # classes that are listed


def parser() -> Parser:
    """The arguments of the command."""
    made = Parser(
        "summary", "Print the layers of a network, with shapes and numbers of parameters."
    )
    made.add_argument(
        "network", metavar="MODEL_OR_DIR", help="a network's name, or a training's output folder"
    )
    return made


def run(argv: Sequence[str]) -> int:
    """Print; returns the exit code.

    Raises:
        UnknownNameError: for what is neither a network nor a folder.
        MagmaDNNError: if the folder holds no model.
    """
    name = parser().read(argv).network
    if name in NETWORKS:
        _describe(NETWORKS[name])
    elif is_folder(expanded(name)):
        model, preparation = open_trained(name)
        print(summary_text(model))
        print(_data_words(preparation))
    else:
        raise UnknownNameError(
            f"{UnknownNameError.of('model', name, NETWORKS)}; nor is it a training's output folder"
        )
    return 0


def _describe(network: Network) -> None:
    """All presets of a network, for the data that each is meant for."""
    print(f"{network.name}: {network.about}")
    for name, preset in network.presets.items():
        kind = "table" if name == network.table_preset else network.shown_for
        shape, outputs, words = _SHAPES[kind]
        made = network.model(shape, outputs, preset)
        print(f"\npreset {name}: {preset.about}; here for {words}")
        print(summary_text(made))


def _data_words(preparation: Preparation) -> str:
    """What goes in and comes out."""
    shape = " x ".join(map(str, preparation.input_shape))
    if preparation.components is not None:
        shape += f", {len(preparation.components.directions)} principal components of them"
    if preparation.task == "regression":
        targets = ", ".join(preparation.target_names)
        return f"inputs: {shape}; regression" + (f" of {targets}" if targets else "")
    names = ", ".join(preparation.classes[:_SHOWN])
    more = ", ..." if len(preparation.classes) > _SHOWN else ""
    return f"inputs: {shape}; {len(preparation.classes)} classes: {names}{more}"
