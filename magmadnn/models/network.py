"""What a network with a name is: a function that builds its layers, and presets for training it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, sqrt
from typing import Any, Literal, Protocol

from magmadnn.errors import UnknownNameError
from magmadnn.training import Model

_MOST_EPOCHS = 300  # of presets that say steps


@dataclass(frozen=True)
class Preset:
    """Everything that a training needs beside the data.

    Attributes:
        about: what it is for, in a few words.
        hidden: sizes of the hidden layers.
        activation: of the hidden layers.
        dropout: share of each hidden layer's outputs that is dropped in training.
        optimizer: its name.
        learning_rate: of the optimiser, at the first step.
        cosine: whether it then falls to 0 along a cosine, which ends with the last epoch.
        weight_decay: of the optimiser; None: the optimiser's own default.
        batch_size: samples of a step.
        epochs: passes over the data.
        steps: where it is given, the preset follows the number of training rows: see `for_rows`.
        rows: of them, the number that steps, batch_size and weight_decay are meant for.
        augment: "standard" or "none": how images are changed at random.
        validation_split: share of the training rows that is kept back for validation.
        note: what must be said about it wherever it is used; empty for nothing.
    """

    about: str
    hidden: tuple[int, ...]
    activation: str = "relu"
    dropout: float = 0.0
    optimizer: str = "adam"
    learning_rate: float = 1e-3
    cosine: bool = True
    weight_decay: float | None = None
    batch_size: int = 128
    epochs: int = 5
    steps: int | None = None
    rows: int = 1000
    augment: str = "none"
    validation_split: float = 0.1
    note: str = ""

    def for_rows(self, rows: int, **given: Any) -> Preset:
        """The preset for training on so many rows, changed by what is given.

        With `steps`, and r = rows / self.rows: epochs make steps * max(1, sqrt(r)) steps, but are at most
        300, and weight_decay is divided by sqrt(r). A batch has half of batch_size where r < 1/2. Up to two
        of batch_size, all rows make one batch, and r is that of so many rows.

        Args:
            rows: that are trained on.
            given: values for other fields, which are taken as they are.
        """
        own = replace(self, **given)
        if own.optimizer != self.optimizer and "weight_decay" not in given:
            own = replace(own, weight_decay=None)  # it was meant for the preset's own optimiser
        if own.steps is None:
            return own
        size = own.batch_size
        growth = sqrt(max(rows, 2 * self.batch_size) / own.rows)
        if "batch_size" not in given:
            size = rows if rows <= 2 * size else size // 2 if 2 * rows < own.rows else size
        epochs, decay = own.epochs, own.weight_decay
        if "epochs" not in given:
            epochs = min(_MOST_EPOCHS, ceil(own.steps * max(1.0, growth) / ceil(rows / size)))
        if "weight_decay" not in given and decay is not None:
            decay /= growth
        return replace(own, batch_size=size, epochs=epochs, weight_decay=decay)


def rows_of_batch(size: int, before: int, rows: int) -> int:
    """The batch size for training anew on more rows: as before, or all rows where all made one batch."""
    return max(size, rows) if size >= before else size


class Build(Protocol):
    """Makes a network."""

    def __call__(self, input_shape: Sequence[int], outputs: int, **options: Any) -> Model:
        """A model for inputs [batch, *input_shape] and outputs [batch, outputs]."""
        ...


@dataclass(frozen=True)
class Network:
    """A network with a name.

    Attributes:
        name: on the command line.
        about: what it is, in a few words.
        build: makes it.
        image_preset: the preset that is taken where none is named and inputs are images.
        table_preset: and where they are rows of a table; None: it takes images only.
        presets: by name.
        options: fields of a preset that `build` takes.
        shown_for: the images that a summary is given for: mnist, cifar or photographs.
    """

    name: str
    about: str
    build: Build
    image_preset: str
    table_preset: str | None
    presets: Mapping[str, Preset] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    shown_for: Literal["mnist", "cifar", "photographs"] = "mnist"

    def model(
        self, input_shape: Sequence[int], outputs: int, chosen: object, **options: Any
    ) -> Model:
        """The model that a preset, or settings that were made of one, say.

        Args:
            input_shape: of one sample.
            outputs: number of classes or targets.
            chosen: has the fields of a preset.
            options: of `Model`.
        """
        own = {name: getattr(chosen, name) for name in self.options}
        return self.build(input_shape, outputs, **own, **options)

    def preset(self, name: str) -> Preset:
        """The preset called `name`.

        Raises:
            UnknownNameError: if there is none of that name.
        """
        if name not in self.presets:
            raise UnknownNameError.of(f"{self.name}: preset", name, self.presets)
        return self.presets[name]

    def default_preset(self, input_shape: Sequence[int]) -> str:
        """The name of the preset for inputs of this shape: images have more than one axis."""
        is_table = self.table_preset is not None and len(input_shape) < 2
        return self.table_preset if is_table and self.table_preset else self.image_preset
