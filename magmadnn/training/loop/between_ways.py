"""A training that goes on in another way than the checkpoint was written in: what stays, and what is said.

Parameters and the optimiser's state are whole in each checkpoint, and batches are those of one rank in all
ways. What differs is how a batch is cut: whole (`fit` alone, `ModelParallel`, `Hybrid`, `sync=True`), into
shards (`DataParallel` with or without `shard=`, `ParameterServer`, layouts), into micro-batches (`Pipeline`),
or not shared out at all (`AsyncSGD`). Within one kind of cut its numbers are settings like any others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from magmadnn.layers.layer import Parameter
from magmadnn.memory.dtypes import is_floating
from magmadnn.storage.printing import note

if TYPE_CHECKING:
    from magmadnn.training.model.model import Model

_CUTS: Final[Mapping[str, str]] = {
    "shards": "{} shards of a batch",
    "micro_batches": "{} micro-batches of a batch",
    "asynchronous": "a whole batch for each worker",
}
_WHOLE: Final = "whole batches"
_OF_WAYS: Final = (*_CUTS, "sync", "wire")  # aspects of a training that its way gives


def without_way(own: Mapping[str, str], saved: Mapping[str, str]) -> tuple[dict[str, str], ...]:
    """What is compared of a training and a checkpoint: not their ways, if these cut batches differently.

    Args:
        own: what the training is known by.
        saved: what that of the checkpoint is.
    """
    kind, before = _kind(own), _kind(saved)
    if kind == before and kind is not None:
        return dict(own), dict(saved)
    left_out = _OF_WAYS if kind != before else ("sync", "wire")
    return tuple({k: v for k, v in run.items() if k not in left_out} for run in (own, saved))


def in_own_way(own: Mapping[str, str], saved: Mapping[str, str]) -> dict[str, str]:
    """What a training that goes on is known by from now on: its own way, else as the checkpoint says."""
    rest = {name: value for name, value in saved.items() if name not in _OF_WAYS}
    return rest | {name: value for name, value in own.items() if name in _OF_WAYS}


def tell_other_way(model: Model, own: Mapping[str, str], saved: Mapping[str, str]) -> str | None:
    """What is to be said where a training goes on with batches that are cut otherwise; None for nothing."""
    if _kind(own) == _kind(saved):
        return None
    text = (
        f"fit: goes on with {_words(own)}, in the checkpoint {_words(saved)}: parameters, the optimiser's "
        "state and batches are those of the checkpoint, sums of gradients are added up in another order"
    )
    states = [p for p in model.variables() if isinstance(p, Parameter) and not p.trained]
    looking = dict.fromkeys(p.layer.path for p in states if is_floating(p.dtype))
    drawing = dict.fromkeys(p.layer.path for p in states if not is_floating(p.dtype))
    if looking:
        text += f"; statistics of {_listed(looking)} are those of other rows from now on"
    if drawing:
        text += f"; {_listed(drawing)} draws other numbers than it would have"
    return text


def say(text: str | None, told: set[str]) -> None:
    """Print a note once."""
    if text is not None and text not in told:
        told.add(text)
        note(text)


def _kind(run: Mapping[str, str]) -> str | None:
    """How batches are cut, by the name of the setting that says so; None for whole ones."""
    return next((name for name in _CUTS if name in run), None)


def _words(run: Mapping[str, str]) -> str:
    kind = _kind(run)
    rounded = f", gradients rounded to {run['wire'].strip(chr(39))}" if "wire" in run else ""
    return (_WHOLE if kind is None else _CUTS[kind].format(run[kind])) + rounded


def _listed(names: Mapping[str, None]) -> str:
    first = [*names][:3]
    return ", ".join(first) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
