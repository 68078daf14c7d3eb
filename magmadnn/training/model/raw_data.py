"""Raw data at the door of a model: tables become arrays by the names of their columns, and are prepared.

`Model` keeps the columns of the tables that it was fitted on, and a `Preparation` where it was given one. The
methods that take data are wrapped by `takes_raw`: what stands behind them sees prepared arrays only. Plain
arrays of a model without a preparation pass untouched.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np

from magmadnn.data.batching import split_rows
from magmadnn.data.preparation.preparation import Preparation
from magmadnn.data.preparation.standardize import Standardize
from magmadnn.data.preparation.targets import Task
from magmadnn.data.tables.alignment import check_rows
from magmadnn.data.tables.libraries import NEITHER, is_column, is_table
from magmadnn.data.tables.plain import inputs_like, is_foreign_data, learn_columns, plain_target
from magmadnn.data.tables.schema import Schema
from magmadnn.data.tables.values import KINDS, text_of
from magmadnn.data.validation import is_numbers, way_to_shape
from magmadnn.errors import (
    ArgumentError,
    DataError,
    MagmaDNNError,
    ShapeError,
    UnknownNameError,
    quoted,
)
from magmadnn.graph.op import Array
from magmadnn.losses import classification, regression
from magmadnn.training.objective.heads import heads_of
from magmadnn.training.objective.measured import Unit, units_of

if TYPE_CHECKING:
    from .model import Model

F = TypeVar("F", bound=Callable[..., Any])
_SHARED = 8  # results that models of a set share


class TakesRawData:
    """What a model keeps of the tables and the preparation that it was given.

    Attributes:
        preparation: a `Preparation`, or `Standardize`, from which the first `fit` makes one; None: data comes
            as the network takes it.
        columns: what the columns of the tables that `fit` was given are, by the name of the input.
    """

    preparation: Preparation | Standardize | None = None
    columns: Mapping[str, Schema] = {}  # replaced, never changed

    @property
    def units(self) -> tuple[Unit, ...] | None:
        """What metrics are in the units of; None where targets are taken as they are."""
        return None if self.preparation is None else units_of(self.preparation)


def checked_preparation(value: Any) -> Preparation | Standardize | None:
    """What a model may be given as its preparation.

    Raises:
        ArgumentError: it is something else.
    """
    if value is None or isinstance(value, (Preparation, Standardize)):
        return value
    raise ArgumentError(
        f"Model: preparation must be md.data.Standardize() or a Preparation, got {quoted(value)}"
    )


def takes_raw(method: F) -> F:
    """A method of `Model` that takes x (and y), for tables and for a model with a preparation."""
    name = method.__name__

    @wraps(method)
    def taking(self: Model, x: Any, *given: Any, **options: Any) -> Any:
        if is_numbers(x) and self.preparation is None:
            if not given and not options:
                return method(self, x)  # the usual prediction, as fast as can be
            if not _has_tables((*given, *options.values())):
                return method(self, x, *given, **options)
        if name.startswith("predict"):
            return _predict(self, method, x, options)
        if given:
            if len(given) > 1 or "y" in options:
                return method(self, x, *given, **options)  # which says what is wrong
            options["y"] = given[0]
        return (_evaluate if name == "evaluate" else _fit)(self, method, x, options)

    return cast(F, taking)


def _has_tables(values: Sequence[Any]) -> bool:
    """Whether there is a table or a column of another library among these, or in a tuple or dict of them."""
    parts = [
        part for v in values for part in (v if isinstance(v, (tuple, list)) and len(v) < 9 else [v])
    ]
    inner = [
        part for p in parts for part in (p.values() if isinstance(p, Mapping) else [p])
    ]  # of validation data too
    return any(
        is_foreign_data(part)
        for part in inner
        if not (isinstance(part, NEITHER) or is_numbers(part))
    )


def fitted_preparation(model: Model, what: str, prepared: bool) -> Preparation | None:
    """The preparation that data has to go through; None if it comes prepared.

    Raises:
        ArgumentError: it has to be fitted first.
    """
    if prepared or model.preparation is None:
        return None
    if isinstance(model.preparation, Standardize):
        raise ArgumentError(
            f"{what}: the preparation is not fitted yet: fit does that; data that is prepared already is "
            "given with prepared=True"
        )
    return model.preparation


# --- predict ----------------------------------------------------------------------------------


def _predict(model: Model, method: Callable[..., Any], x: Any, options: dict[str, Any]) -> Any:
    name, prepared = method.__name__, options.get("prepared", False)
    made = fitted_preparation(model, name, prepared)
    x = (
        model_inputs(model, name, x)
        if made is None
        else _prepared(name, lambda: made.apply_inputs(x))
    )
    found = method(model, x, **{**options, "prepared": True})
    own = model.preparation
    if not isinstance(own, Preparation):
        return found
    if name == "predict_class":
        return own.restore_target(found)
    if name == "predict" and own.task == "regression":
        return own.restore_target(np.reshape(found, (len(found), *own.target_shape)))
    return found


def _prepared(what: str, act: Callable[[], Any]) -> Any:
    """What `act` gives; its errors begin with the method's name."""
    try:
        return act()
    except MagmaDNNError as error:
        raise type(error)(f"{what}: {error}") from error


def model_inputs(
    model: Model, what: str, x: Any, learnt: dict[str, Schema] | None = None, target: Any = None
) -> Any:
    """Inputs with arrays in place of tables.

    Args:
        model: whose columns are known from `fit`.
        what: how messages begin.
        x: as the model takes it, perhaps with tables.
        learnt: where columns that are not known yet are kept.
        target: the targets, whose names must not be among the columns.

    Raises:
        DataError, DTypeError, UnknownNameError: a table that does not fit.
    """
    names = [placeholder.name for placeholder in model.inputs]
    if isinstance(x, Mapping):
        return {k: _input(model, what, f"x[{k!r}]", k, v, learnt, target) for k, v in x.items()}
    if isinstance(x, (list, tuple)) and len(x) == len(names) and any(map(is_foreign_data, x)):
        found = [
            _input(model, what, f"x[{k}]", name, value, learnt, target)
            for k, (name, value) in enumerate(zip(names, x, strict=True))
        ]
        return type(x)(found)
    return _input(model, what, "x", names[0], x, learnt, target)


def _input(
    model: Model,
    what: str,
    label: str,
    name: str,
    value: Any,
    learnt: dict[str, Schema] | None,
    target: Any,
) -> Any:
    """One input."""
    if not is_table(value):
        return plain_target(value, f"{what}: {label}").values if is_column(value) else value
    known, words = model.columns.get(name), f"{what}: {label}"
    schema = known or learn_columns(
        value, words, targets=plain_target(target, "y").columns if is_foreign_data(target) else ()
    )
    for column in schema.columns:
        if column.kind in ("category", "date", "instant"):
            raise DataError(
                f"{words}: column {quoted(column.name)} holds {KINDS[column.kind]}, which need a "
                "preparation: model.preparation = md.data.Standardize()"
            )
    if learnt is not None:
        learnt[name] = schema
    array = inputs_like(value, words, schema, None)
    whole = all(column.kind != "duration" for column in schema.columns)
    if whole and model.inputs and _takes_whole_numbers(model, name):
        integers = array.astype(np.int64)
        return integers if (integers == array).all() else array
    return array


def _takes_whole_numbers(model: Model, name: str) -> bool:
    return any(p.name == name and p.dtype.kind in "iu" for p in model.inputs)


# --- fit and evaluate -------------------------------------------------------------------------


def _targets(y: Any, what: str) -> Any:
    """Targets with arrays in place of tables and columns."""
    if isinstance(y, Mapping):
        return {k: _targets(v, f"{what}[{k!r}]") for k, v in y.items()}
    if isinstance(y, (list, tuple)) and any(map(is_foreign_data, y)):
        return type(y)(_targets(v, f"{what}[{k}]") for k, v in enumerate(y))
    return plain_target(y, what).values if is_foreign_data(y) else y


def _weights(value: Any, what: str) -> Any:
    """Weights with arrays in place of columns."""
    if isinstance(value, Mapping):
        return {k: _weights(v, f"{what}[{k!r}]") for k, v in value.items()}
    return plain_target(value, what).values if is_column(value) else value


def _check_rows(what: str, **given: Any) -> None:
    """`check_rows` also of what stands in dicts and lists, by the words that messages call it by."""
    found: dict[str, Any] = {}
    for label, value in given.items():
        if isinstance(value, Mapping):
            found |= {f"{label}[{name!r}]": part for name, part in value.items()}
        elif isinstance(value, (list, tuple)) and any(map(is_foreign_data, value)):
            found |= {f"{label}[{k}]": part for k, part in enumerate(value)}
        else:
            found[label] = value
    check_rows(what, **found)


def _pair(
    model: Model,
    what: str,
    made: Preparation | None,
    x: Any,
    y: Any,
    learnt: dict[str, Schema] | None = None,
) -> tuple[Any, Any]:
    """Inputs and targets as the network takes them."""
    _check_rows(f"{what}: ", x=x, y=y)
    if made is None:
        return model_inputs(model, what, x, learnt, y), _targets(y, f"{what}: y")
    inputs = _prepared(what, lambda: made.apply_inputs(x))
    targets: Array = _prepared(what, lambda: made.apply_target(y))
    if len(inputs) != len(targets):
        raise ShapeError(f"{what}: x has {len(inputs)} rows but y has {len(targets)}")
    return inputs, targets


def _evaluate(model: Model, method: Callable[..., Any], x: Any, options: dict[str, Any]) -> Any:
    made = fitted_preparation(model, "evaluate", options.get("prepared", False))
    y, weights = options.get("y"), options.get("sample_weight")
    if y is None:
        _refuse_stream(made, "evaluate")
        return method(model, x, **{**options, "prepared": True})
    _check_rows("evaluate: ", x=x, y=y, sample_weight=weights)
    inputs, targets = _pair(model, "evaluate", made, x, y)
    options |= {"y": targets, "sample_weight": _weights(weights, "evaluate: sample_weight")}
    return method(model, inputs, **{**options, "prepared": True})


def _refuse_stream(made: object, what: str) -> None:
    if made is not None:
        raise ArgumentError(
            f"{what}: batches of an iterable are not prepared: give x and y as arrays or tables, or prepared "
            "batches and prepared=True"
        )


def _fit(model: Model, method: Callable[..., Any], x: Any, options: dict[str, Any]) -> Any:
    """Fit: columns and preparation are learnt from the rows that are trained on."""
    y, weights = options.get("y"), options.get("sample_weight")
    once = (options.pop("shared", None) or SharedData()).once
    own, before = (None if options.get("prepared", False) else model.preparation), model.columns
    if y is None:
        _refuse_stream(own, "fit")
        return method(model, x, **{**options, "prepared": True})
    _check_rows("fit: ", x=x, y=y, sample_weight=weights)
    made: Preparation | None
    if isinstance(own, Standardize):
        share = options.get("validation_split", 0.0)
        way = (
            own,
            _task_of(model),
            len(model.inputs),
            len(model.outputs),
            share,
            share and model.seed,
        )
        made = once(way, (x, y), lambda: _fit_preparation(model, own, x, y, options))
    else:
        made = own
    learnt = dict(before)

    def pair(where: str, x: Any, y: Any, learnt: dict[str, Schema] | None = None) -> Any:
        if made is None:
            return _pair(model, where, made, x, y, learnt)
        return once((where,), (made, x, y), lambda: _pair(model, where, made, x, y))

    inputs, targets = pair("fit", x, y, learnt)
    options |= {"y": targets, "sample_weight": _weights(weights, "fit: sample_weight")}
    if made is not None and isinstance(options.get("class_weight"), Mapping):
        options["class_weight"] = _by_number(made, options["class_weight"])
    data = options.get("validation_data")
    model.columns = learnt
    if made is not None:
        _check_width(model, made)
        model.preparation = made
    try:
        if isinstance(data, (tuple, list)) and len(data) in (2, 3):
            labels = dict(zip(("x", "y", "weights"), data, strict=False))
            _check_rows("fit: validation_data: ", **labels)
            val_x, val_y = pair("fit: validation_data", *data[:2])
            options["validation_data"] = (val_x, val_y, *(_weights(w, "weights") for w in data[2:]))
        return method(model, inputs, **{**options, "prepared": True})
    except MagmaDNNError:
        if model._step is None:  # nothing was trained, so all may be other next time
            model.columns = before
            if isinstance(own, Standardize):
                model.preparation = own
        raise


class SharedData:
    """What data became, for the models of a set: those of equal preparations find it done.

    Nobody may write to the data while it is used.
    """

    def __init__(self) -> None:
        self._done: OrderedDict[Hashable, tuple[tuple[Any, ...], Any]] = OrderedDict()

    def once(self, way: Hashable, given: tuple[Any, ...], make: Callable[[], Any]) -> Any:
        """What `make` gave for the same objects, in this way; the last few are kept."""
        key = (way, *map(id, given))
        if key not in self._done:
            self._done[key] = given, make()  # while the objects are kept, no other has their id
            if len(self._done) > _SHARED:
                self._done.popitem(last=False)
        return self._done[key][1]


def _fit_preparation(
    model: Model, own: Standardize, x: Any, y: Any, options: Mapping[str, Any]
) -> Preparation:
    """The preparation of the rows that are trained on, without those kept back to validate."""
    if len(model.inputs) != 1 or len(model.outputs) != 1:
        raise ArgumentError("fit: a preparation is for models of one input and one output")
    share, rows = options.get("validation_split", 0.0), None
    target = plain_target(y, "y").values
    if isinstance(share, float) and 0 < share < 1:
        rows = split_rows(len(target), share, model.seed)[0]
    return _prepared("fit", lambda: own.fit(x, y, task=_task_of(model), rows=rows))  # type: ignore[no-any-return]


def _task_of(model: Model) -> Task | None:
    """What the loss says."""
    heads = heads_of(model) if model.loss is not None else []
    family = type(heads[0].loss).__module__ if len(heads) == 1 else ""
    named: dict[str, Task] = {
        classification.__name__: "classification",
        regression.__name__: "regression",
    }
    return named.get(family)


def _check_width(model: Model, made: Preparation) -> None:
    """Refuse inputs of another shape than the network's, naming what columns become."""
    expected, task = model.inputs[0].shape[1:], _task_of(model)
    if task is not None and task != made.task:
        raise ArgumentError(
            f"fit: the loss is one of {task}, but the preparation one of {made.task}"
        )
    if len(expected) == len(made.prepared_shape) and all(
        not isinstance(e, int) or e == s for e, s in zip(expected, made.prepared_shape, strict=True)
    ):
        return
    names = "" if made.schema is None else f" ({', '.join(made.schema.inputs[:10])}, ...)"
    way = way_to_shape("x", (1, *made.prepared_shape), expected)
    raise ShapeError(
        f"fit: x becomes {made.prepared_shape} inputs{names}, but input {model.inputs[0].name!r} takes "
        f"{expected}: {way and f'{way}, or '}write Input({made.prepared_shape})"
    )


def _by_number(made: Preparation, weights: Mapping[Any, float]) -> dict[int, float]:
    """Weights of classes by their numbers."""
    found = {}
    for label, weight in weights.items():
        name = text_of(label)
        if name not in made.classes:
            raise UnknownNameError.of("fit: class_weight: class", name, made.classes)
        found[made.classes.index(name)] = weight
    return found
