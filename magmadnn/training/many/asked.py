"""What `fit_many` has been asked for, by number of the model, and the trainings of some of these models."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np

from magmadnn.data._structure import leaves
from magmadnn.runtime.agreement import agreement
from magmadnn.training.callbacks import Callback
from magmadnn.training.loop.fit import Fit
from magmadnn.training.loop.given import gpu_of
from magmadnn.training.model.fitting import training_of
from magmadnn.training.model.model import Model
from magmadnn.training.model.raw_data import SharedData

from .following.followers import are_kept, kept_leads
from .following.kinds import kind_of
from .given import Rows, is_plain, sent, taken
from .running.members import Member
from .running.room import Room, rooms_for
from .running.scheduler import run_all
from .told import Told

_WHAT = "fit_many"
_OWN = f"{__name__.split('.', maxsplit=1)[0]}."
_KEPT = 256  # models at most, of which what is compiled stays for a further call,
_KEPT_ON_DEVICES = 4096  # and of those on a device, which have 0.2 MB each


@dataclass(frozen=True, eq=False)
class Asked:
    """What is to be trained, checked; what differs from model to model by number.

    Attributes:
        x, y, sample_weight, validation_data: as `fit_many` takes them.
        batch_sizes: samples of a step.
        epochs: passes over the data.
        rows: of x and y that each model is trained on; None for all.
        held: rows that each is evaluated on after an epoch; None where they are not given so.
        callbacks: of each.
        options: further arguments of `fit`, alike for all.
        memory_limit: as `fit_many` takes it.
    """

    x: Any
    y: Any
    sample_weight: Any
    validation_data: Any
    batch_sizes: Mapping[int, int]
    epochs: Mapping[int, int]
    rows: Mapping[int, Rows | None]
    held: Mapping[int, Rows | None]
    callbacks: Mapping[int, Sequence[Callback]]
    options: Mapping[str, Any]
    memory_limit: int | None

    def described(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Data and settings, by which ranks know that they have been asked for the same."""
        data = {"x": self.x, "y": self.y, "sample_weight": self.sample_weight}
        parts = ("validation x", "validation y", "validation weights")
        held = self.validation_data if isinstance(self.validation_data, (tuple, list)) else ()
        settings = {
            "batch_size": list(self.batch_sizes.values()), "epochs": list(self.epochs.values()),
            "rows": list(self.rows.values()), "validation_rows": list(self.held.values()),
            "memory_limit": self.memory_limit, **self.options,
        }  # fmt: skip
        given = {**data, **dict(zip(parts, held, strict=False))}
        return {name: value for name, value in given.items() if value is not None}, settings

    def costs(self, models: Sequence[Model], available: int) -> list[float]:
        """About how much work each training is: parameters * rows * epochs."""
        found = []
        for number, model in enumerate(models):
            own = self.rows[number]
            rows = available if own is None else len(own)
            weight = sum(
                math.prod(map(int, parameter.node.shape)) for parameter in model.parameters()
            )
            found.append(float(weight * rows * self.epochs[number]))
        return found

    def members(self, models: Mapping[int, Model]) -> list[Member]:
        """The trainings of these models, none of them begun."""
        data = _Data(self.x, self.y, self.sample_weight, self.validation_data)
        common = {"loader_workers": 1, "verbose": False, "prepared": False}
        found, told = [], set[str]()
        for number, model in models.items():
            options = {
                **self.options, **common, "batch_size": self.batch_sizes[number],
                "epochs": self.epochs[number], "callbacks": self.callbacks[number],
            }  # fmt: skip
            make = partial(data.training, model, self.rows[number], self.held[number], options)
            device = gpu_of(model)
            keeps = len(self.epochs) <= (_KEPT if device is None else _KEPT_ON_DEVICES)
            found.append(Member(number, make, self.callbacks[number], keeps, device, told))
        return found

    def train(
        self,
        members: Sequence[Member],
        models: Mapping[int, Model],
        told: Told,
        look: Callable[[], None] = lambda: None,
        shared: str = "",
    ) -> None:
        """Run trainings to their ends.

        Args:
            members: those that run here.
            models: of all, by number.
            told: prints; its `end` is left to the caller.
            look: called now and then.
            shared: words on who trains them, where that is not this process alone.

        Raises:
            MagmaDNNError: as `fit_many`.
        """
        groups, leads = self._groups(members, models), kept_leads()
        begin = {key: own[0] for key, own in groups.items() if leads.get(key) is None}
        grouped = {member for own in groups.values() for member in own} - set(begin.values())
        first = [member for member in members if member not in grouped]
        rooms = self._rooms(first, models)
        epochs = sum(self.epochs[member.number] for member in members)
        sizes = [self.batch_sizes[number] for number in models]
        told.begin(list(models.values()), members, sizes, epochs, rooms.values(), shared)

        def both() -> None:
            told.look()
            look()

        run_all(first, both, rooms)
        for key, own in groups.items():
            if key in begin and (lead := begin[key].lead) is not None:
                leads.keep(key, lead, (self.x, self.y, self.validation_data))
            if (lead := leads.get(key)) is not None:
                lead.train([one for one in own if not one.is_done], models, both)
        if left := [member for member in members if not member.is_done]:
            run_all(left, both, self._rooms(left, models))

    def _rooms(
        self, members: Sequence[Member], models: Mapping[int, Model]
    ) -> dict[int | None, Room]:
        """The room for trainings, which keep nothing compiled where not all have room at once."""
        rooms = rooms_for(_WHAT, members, models, self.batch_sizes, self.memory_limit)
        for member in members:
            member.keeps &= not rooms[member.device].in_waves
        return rooms

    def _groups(
        self, members: Sequence[Member], models: Mapping[int, Model]
    ) -> dict[Hashable, list[Member]]:
        """Trainings that can follow one of them, by what they are like; nobody looks at them meanwhile."""
        if not self._is_plain:
            return {}
        held = self.validation_data if self.validation_data is not None else ()
        common = (tuple(map(id, (self.x, self.y, *held))), self.options["shuffle"])
        groups: dict[Hashable, list[Member]] = {}
        for member in members:
            number = member.number
            if self.rows[number] is not None or self.held[number] is not None:
                continue
            if all(callback.is_idle for callback in self.callbacks[number]):
                member.kind = kind_of(models[number])
            if member.kind is not None:
                key: tuple[Hashable, ...] = (
                    member.kind.like,
                    self.batch_sizes[number],
                    self.epochs[number],
                    common,
                )
                if models[number].preparation is not None and are_kept():
                    key = (*key, self._digest)  # what was prepared is of these very numbers
                groups.setdefault(key, []).append(member)
        leads = kept_leads()
        found = {k: _with_one_lead(own, leads.get(k) is not None) for k, own in groups.items()}
        return {k: own for k, own in found.items() if len(own) > 1 or leads.get(k) is not None}

    @cached_property
    def _digest(self) -> bytes:
        """Of the numbers of x, y and what is validated on."""
        found = hashlib.blake2b(digest_size=16)
        for value in (self.x, self.y, *(self.validation_data or ())):
            for _, array in leaves(value, "x"):
                found.update(np.ascontiguousarray(array).view(np.uint8).data)
        return found.digest()

    @property
    def _is_plain(self) -> bool:
        """Whether data is arrays, of which all rows count alike, and nothing but these decides on a step."""
        usual = {"validation_split": 0.0, "class_weight": None, "augment": None, "accumulate": 1}
        usual |= {"initial_epoch": None}
        if self.memory_limit is not None or self.sample_weight is not None:
            return False
        held = self.validation_data if self.validation_data is not None else ()
        return (
            all(self.options[name] == value for name, value in usual.items())
            and isinstance(held, (tuple, list))
            and is_plain(self.x, self.y, *held)
            and agreement().is_alone
        )


def _with_one_lead(members: list[Member], has_lead: bool) -> list[Member]:
    """Those that can follow, behind the lead where there is none yet: one with a step, if one has.

    Others that have steps are trained by these.
    """
    made = [m for m in members if m.kind is not None and m.kind.has_step]
    left = made if has_lead else made[1:]
    for member in left:
        member.kind = None
    return [*made[: len(made) - len(left)], *(m for m in members if m not in made)]


class _Data:
    """The data set of all models, and what each of them takes of it."""

    def __init__(self, x: Any, y: Any, sample_weight: Any, validation_data: Any) -> None:
        self.x, self.y, self.sample_weight = x, y, sample_weight
        self.validation_data = validation_data
        self._shared = SharedData()
        self._there: dict[int | None, tuple[Any, Any, Any]] = {}  # by device

    def training(
        self, model: Model, rows: Rows | None, held: Rows | None, options: dict[str, Any]
    ) -> Fit:
        """The training of a model on its rows."""
        weights, device = self.sample_weight, gpu_of(model)
        x, y, validation = self._on(device) if held is None else (self.x, self.y, None)
        if held is not None:
            validation = tuple(taken(part, held) for part in (x, y, weights) if part is not None)
        shared = rows is not None and self._can_share(model, options)
        if rows is not None and not shared:
            x, y, weights = (taken(part, rows) for part in (self.x, self.y, weights))
        if rows is None and held is None and self._can_prepare_once(model, options):
            options = {**options, "shared": self._shared}
        return training_of(
            model, x, y, sample_weight=weights, validation_data=validation,
            rows=rows if shared else None, **options,
        )  # fmt: skip

    @staticmethod
    def _can_prepare_once(model: Model, options: Mapping[str, Any]) -> bool:
        """Whether models of equal preparations find it done: nobody's callback may write to the data."""
        return model.preparation is not None and all(map(_is_own, options["callbacks"]))

    def _on(self, device: int | None) -> tuple[Any, Any, Any]:
        """x, y and what is validated: arrays as copies on a device, which all models there read."""
        if device not in self._there:
            given = (self.x, self.y, self.validation_data)
            self._there[device] = given if device is None else sent(given, device)
        return self._there[device]

    def _can_share(self, model: Model, options: Mapping[str, Any]) -> bool:
        """Whether its rows can be taken out of the arrays of all models: nothing else depends on them."""
        plain = is_plain(self.x, self.y, self.sample_weight)
        alone = options["class_weight"] is None and options["augment"] is None
        return plain and alone and model.preparation is None


def _is_own(callback: Callback) -> bool:
    """Whether a callback runs nothing of the user's."""
    own = type(callback).__module__.startswith(_OWN)
    return own and not any(map(callable, vars(callback).values()))
