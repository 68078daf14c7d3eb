"""A description as a network with a preset, which the command line trains by the name of the file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from magmadnn.errors import ArgumentError, ShapeError
from magmadnn.graph.signature import shape_text
from magmadnn.models.network import Network, Preset
from magmadnn.storage.input_files import input_path
from magmadnn.training import Model

from .description import Description, read_description
from .network import built

ENDING = ".prototxt"
_PRESET = Preset(
    about="the settings that are not in the file: Caffe has them in that of the solver, which is not read",
    hidden=(),
    batch_size=64,
)


def is_description(name: object) -> bool:
    """Whether the name of a model is that of a file with a description."""
    return isinstance(name, str) and name.endswith(ENDING)


def described_network(file: str) -> Network:
    """The network that a file describes; its name is the absolute path.

    Raises:
        FileError, DataError, UnknownNameError: as `from_caffe`, of what can be told without the data.
    """
    path = input_path("MODEL", file).absolute()
    description = read_description(path)

    def build(input_shape: Sequence[int], outputs: int, **options: Any) -> Model:
        return _for_data(description, input_shape, outputs, options)

    about = f"{description.name or path.stem}, described for Caffe"
    return Network(str(path), about, build, "image", "image", {"image": _PRESET})


def _for_data(
    description: Description, input_shape: Sequence[int], outputs: int, options: dict[str, Any]
) -> Model:
    """The model, if it has one output that fits the data.

    Raises:
        ArgumentError: it has several outputs.
        ShapeError: its output has another size.
    """
    model = built(description, input_shape, options)
    if len(model.outputs) > 1:
        raise ArgumentError(
            f"{description.file}: the network has {len(model.outputs)} outputs, and the command trains "
            "networks with one: leave the others out of the file, or use md.models.from_caffe in Python"
        )
    shape = model.outputs[0].shape
    if shape[1:] != (outputs,):
        raise ShapeError(
            f"{description.file}: the network gives {shape_text(shape)}, and the data needs "
            f"[batch, {outputs}]: set num_output of its last layer"
        )
    return model
