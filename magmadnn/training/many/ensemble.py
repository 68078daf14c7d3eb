"""Several trained models as one: the mean of what they predict, and how far they are apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from magmadnn.calls import ExplainsAttributes
from magmadnn.data.preparation.preparation import Preparation
from magmadnn.errors import ArgumentError, quoted
from magmadnn.graph.op import Array
from magmadnn.graph.signature import shape_text
from magmadnn.losses import Loss
from magmadnn.losses.loss import Outputs
from magmadnn.storage.checkpoint import State, save_state
from magmadnn.storage.disk import as_path
from magmadnn.training.model.classes import by_loss, probabilities
from magmadnn.training.model.model import Model
from magmadnn.training.model.saving import model_record

from .given import checked_models

KIND = "ensemble"


class Ensemble(ExplainsAttributes):
    """Models that predict together.

    With members k = 1 ... K and their predictions p_k of a row, `predict` gives the mean m = sum_k p_k / K,
    `predict_std` the deviation sqrt(sum_k (p_k - m)^2 / K), and `predict_probability` the mean of their
    probabilities, which is the mixture of Lakshminarayanan, Pritzel, Blundell, "Simple and scalable
    predictive uncertainty estimation using deep ensembles", NIPS 2017, section 2.4.

    Args:
        models: with inputs and outputs of equal shapes, and equal classes; each may have a preparation of its
            own.

    Attributes:
        models: the members.

    Raises:
        ArgumentError: if there is none, or they do not go together.
    """

    def __init__(self, models: Sequence[Model]) -> None:
        self.models = checked_models("Ensemble", models, apart=False)
        first = _looks(self.models[0])
        for number, model in enumerate(self.models):
            for name, value in _looks(model).items():
                if value != first[name]:
                    raise ArgumentError(
                        f"Ensemble: models[{number}] has {name} {value}, but models[0] {first[name]}; "
                        "members must be alike in that"
                    )

    def __len__(self) -> int:
        return len(self.models)

    def __repr__(self) -> str:
        return f"<Ensemble of {len(self)}: {self.models[0]!r}>"

    def predict(self, x: Any, *, batch_size: int = 4096) -> Any:
        """The mean of the members' predictions, as `Model.predict` gives them; in float64.

        For a model whose last layer gives logits these are means of logits: see `predict_probability`.

        Args:
            x: as for `Model.predict`.
            batch_size: samples that are computed at a time.
        """
        return self._over(lambda model: model.predict(x, batch_size=batch_size), np.mean)

    def predict_std(self, x: Any, *, batch_size: int = 4096) -> Any:
        """The standard deviation of the members' predictions, with divisor K; in float64.

        Args:
            x: as for `Model.predict`.
            batch_size: samples that are computed at a time.
        """
        return self._over(lambda model: model.predict(x, batch_size=batch_size), np.std)

    def predict_probability(
        self, x: Any, *, output: str | None = None, batch_size: int = 4096
    ) -> Any:
        """The mean of the members' probabilities; in float64.

        Args:
            x: as for `Model.predict`.
            output: name of one of several outputs; None: a list of all.
            batch_size: samples that are computed at a time.

        Raises:
            ArgumentError: if there are none (see `Model.predict_probability`).
        """
        return self._over(
            lambda model: model.predict_probability(x, output=output, batch_size=batch_size),
            np.mean,
        )

    def predict_class(self, x: Any, *, output: str | None = None, batch_size: int = 4096) -> Any:
        """The class that is most likely in the mean of the members' probabilities, as data has it.

        Args:
            x: as for `Model.predict`.
            output: name of one of several outputs; None: a list of all.
            batch_size: samples that are computed at a time.

        Raises:
            ArgumentError: if there are no classes (see `Model.predict_class`).
        """
        model = self.models[0]
        found = self._over(lambda own: own.predict_probability(x, batch_size=batch_size), np.mean)
        numbers = by_loss(model, "predict_class", found, output, _most_likely)
        made = model.preparation
        return made.restore_target(numbers) if isinstance(made, Preparation) else numbers

    def _over(self, predicted: Callable[[Model], Any], rule: Callable[..., Any]) -> Any:
        """A rule along the axis of the members, for each output."""
        each = [predicted(model) for model in self.models]
        if not isinstance(each[0], list):
            return rule(np.stack(each).astype(np.float64), axis=0)
        return [rule(np.stack(p).astype(np.float64), axis=0) for p in zip(*each, strict=True)]

    def save(self, folder: str | Path) -> None:
        """Write all members to a folder, in one step; `md.load` gives the ensemble.

        Args:
            folder: that is made, or of an ensemble that is replaced.

        Raises:
            FileError: if the folder holds something else, or cannot be written.
            GraphError: if a part of a model cannot be written down.
        """
        tensors = {
            f"models/{number}/{name}": value
            for number, model in enumerate(self.models)
            for name, value in model.values().items()
        }
        record = {"kind": KIND, "models": [model_record(model) for model in self.models]}
        place = as_path("save: the folder", folder)
        save_state(place, State(tensors=tensors, record=record), replace=True)


def _most_likely(where: str, loss: Loss, outputs: Outputs, found: Array) -> Array:
    """The number of the most likely class; 0 and 1 for labels."""
    if outputs.are is None:
        probabilities(where, loss, outputs, found)  # says that there are none
        raise ArgumentError(f"{where}: the loss {loss.name} is for {outputs.words}; use predict")
    if outputs.are == "classes":
        numbers: Array = found.argmax(-1)
        return numbers
    labels = (found > 0.5).astype(np.int64)
    return labels[..., 0] if labels.ndim > 1 and labels.shape[-1] == 1 else labels


def _looks(model: Model) -> dict[str, str]:
    """What members must have in common, in words."""
    made = model.preparation
    classes = quoted(made.classes) if isinstance(made, Preparation) else "none"
    return {
        "inputs": ", ".join(shape_text(p.node.shape) for p in model.inputs),
        "outputs": ", ".join(shape_text(o.node.shape) for o in model.outputs),
        "classes": classes,
    }
