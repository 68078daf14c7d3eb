"""A fit of the same arrays and arguments as the last one is looked at less: all that has changed is seen."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.errors import ArgumentError, DataError, DTypeError, ShapeError
from magmadnn.training.loop import given
from magmadnn.training.model import fitting
from tests.runtime.cuda.devices import on
from tests.runtime.cuda.emulator import needs_compiler
from tests.training.test_fit_after_fit import digest, network, walked

RANDOM = np.random.default_rng(17)
ROWS = 56


def data() -> tuple[Any, Any]:
    x = np.random.default_rng(17).normal(size=(ROWS, 5)).astype(np.float32)
    return x, (x[:, 0] > x[:, 1]).astype(np.int64)


def fit(model: md.Model, x: Any, y: Any, **options: Any) -> md.History:
    return model.fit(x, y, **({"batch_size": 8, "verbose": False} | options))


def fit_anew(model: md.Model, x: Any, y: Any, **options: Any) -> md.History:
    """The same, with everything looked at."""
    model._last_fit = None
    return fit(model, x, y, **options)


def is_again(model: md.Model, x: Any, y: Any, **options: Any) -> bool:
    """Whether the model takes a fit to be like the last one."""
    usual = {
        "batch_size": 8,
        "epochs": 1,
        "validation_split": 0.0,
        "shuffle": True,
        "accumulate": 1,
    }
    assert model._last_fit is not None
    return model._last_fit.is_again(model, x, y, usual | {"memory_limit": None} | options)


def test_a_fit_of_the_same_goes_through_few_files() -> None:
    model, (x, y) = network("sgd"), data()
    for _ in range(2):
        fit(model, x, y)
    files, crossings = walked(lambda: fit(model, x, y))
    not_entered = {
        "training/arguments.py",
        "training/model/raw_data.py",
        "training/loop/given.py",
        "data/_structure.py",
        "memory/unchanging.py",
        "memory/manager.py",
        "backends/cpu/forks.py",
        "workers/client.py",
    }
    assert is_again(model, x, y)
    assert not not_entered & set(files)
    assert len(files) <= 27 and crossings <= 190, (len(files), crossings)


# --- what changes is seen -------------------------------------------------------------------------


def frozen(model: md.Model, x: Any, y: Any) -> None:
    model.layers[0].trainable = False


def more_metrics(model: md.Model, x: Any, y: Any) -> None:
    model.metrics.append("precision")


def other_optimizer(model: md.Model, x: Any, y: Any) -> None:
    model.optimizer = md.optim.Adam(0.003)


def other_values(model: md.Model, x: Any, y: Any) -> None:
    x *= 2
    y[:] = 1 - y


def other_parameters(model: md.Model, x: Any, y: Any) -> None:
    model.assign({n: (v * 0.5).astype(v.dtype) for n, v in model.values().items()})


def read_only(model: md.Model, x: Any, y: Any) -> None:
    x.flags.writeable = y.flags.writeable = False


def other_units(model: md.Model, x: Any, y: Any) -> None:
    model.preparation = md.data.Standardize()


CHANGES: list[Callable[[md.Model, Any, Any], None]] = [
    frozen, more_metrics, other_optimizer, other_values, other_parameters, read_only, other_units,
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_it_is_the_fit_of_other_arrays_with_the_same_values(change: Any) -> None:
    one, other, (x, y) = network("sgd"), network("sgd"), data()
    rng = np.random.default_rng(17)
    x[:], y[:] = rng.normal(size=x.shape), rng.integers(0, 2, ROWS)
    given = x.copy(), y.copy()
    for number in range(4):
        if number == 2:
            change(one, x, y)
            change(other, *given)
        histories = fit(one, x, y), fit_anew(other, given[0].copy(), given[1].copy())
        assert histories[0].columns == histories[1].columns
    assert digest(one) == digest(other)


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 7},
        {"epochs": 2},
        {"shuffle": False},
        {"validation_split": 0.25},
        {"accumulate": 2},
        {"sample_weight": np.linspace(0.5, 1.5, ROWS)},
        {"class_weight": "balanced"},
        {"validation_data": data()},
        {"initial_epoch": 1, "epochs": 3},
        {"callbacks": [md.callbacks.Schedule(lambda epoch: 0.01)]},
    ],
    ids=lambda options: next(iter(options)),
)
def test_other_arguments_count(options: dict[str, Any]) -> None:
    one, other, (x, y) = network("sgd"), network("sgd"), data()
    for more in ({}, {}, options, {}, options, options):
        histories = fit(one, x, y, **more), fit_anew(other, x.copy(), y.copy(), **more)
        assert histories[0].columns == histories[1].columns
        assert histories[0]["epoch"] == histories[1]["epoch"]
    assert digest(one) == digest(other)


def spoilt_value(x: Any, y: Any) -> None:
    x[3, 2] = np.nan


def spoilt_class(x: Any, y: Any) -> None:
    y[5] = 2


def other_shape(x: Any, y: Any) -> None:
    x.shape = (ROWS // 2, 10)


def other_type(x: Any, y: Any) -> None:
    y.dtype = np.float64


def other_order(x: Any, y: Any) -> None:
    y.dtype = np.dtype(np.int64).newbyteorder()


@pytest.mark.parametrize(
    ("spoil", "error", "words"),
    [
        (spoilt_value, DataError, "x: row 3, column 2 is nan"),
        (spoilt_class, DataError, "y: row 5 has the label 2"),
        (other_shape, ShapeError, "samples of shape"),
        (other_type, DTypeError, "class numbers are of type float64"),
        (other_order, DataError, "outside the classes"),
    ],
)
def test_what_was_written_into_the_arrays_is_seen(spoil: Any, error: Any, words: str) -> None:
    model, (x, y) = network("sgd"), data()
    for _ in range(2):
        fit(model, x, y)
    before = digest(model)
    spoil(x, y)
    with pytest.raises(error, match=words):
        fit(model, x, y)
    assert digest(model) == before


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": True},
        {"batch_size": 8.0},
        {"epochs": 1.0},
        {"epochs": True},
        {"shuffle": 1},
        {"validation_split": False},
        {"accumulate": True},
        {"memory_limit": 0},
        {"callbacks": None},
        {"callbacks": 0},
        {"batch_size": np.array([8, 8])},
    ],
    ids=str,
)
def test_arguments_of_other_types_that_compare_equal_are_refused(options: dict[str, Any]) -> None:
    model, (x, y) = network("sgd"), data()
    for _ in range(2):
        fit(model, x, y)
    with pytest.raises(ArgumentError, match=next(iter(options))):
        fit(model, x, y, **options)


def test_while_a_model_is_trained_it_cannot_be_trained_again() -> None:
    model, (x, y) = network("sgd"), data()
    fit(model, x, y)
    hook = md.callbacks.LambdaCallback(on_epoch_end=lambda now: fit(model, x, y))
    with pytest.raises(ArgumentError, match="this model is being trained"):
        fit(model, x, y, callbacks=[hook])


def test_arrays_that_look_alike_are_alike_and_others_are_others(tmp_path: Path) -> None:
    model, (x, y) = network("sgd"), data()
    fit(model, x, y)
    assert is_again(model, x, y) and is_again(model, x.copy(), y) and is_again(model, x[:], y)
    assert is_again(model, np.asfortranarray(x), y)
    assert not is_again(model, None, y) and not is_again(model, x, None)
    assert not is_again(model, x.tolist(), y) and not is_again(model, x[:-1], y[:-1])
    assert not is_again(model, x.astype(np.float64), y) and not is_again(model, x, y[:, None])
    mapped = np.memmap(tmp_path / "x", np.float32, "w+", shape=x.shape)
    for other in (
        np.ma.masked_array(x),
        mapped,
        mapped[:],
        np.asarray(mapped),
        mapped.view(np.ndarray),
    ):
        assert not is_again(model, other, y)
        fit(model, other, y)
        assert model._last_fit is None
        fit(model, x, y)


OTHERS = {
    "batch_size": (7, lambda epoch: 8),
    "epochs": (2, True),
    "validation_split": (0.25, 0),
    "shuffle": (False, 1),
    "accumulate": (2, True),
    "memory_limit": (1 << 30,),
    "initial_epoch": (0, 1),
    "validation_data": (data(),),
    "sample_weight": (np.ones(ROWS),),
    "class_weight": ("balanced", {}),
    "augment": ("standard", []),
    "parallel": (md.parallel.DataParallel(),),
    "rows": (np.arange(ROWS),),
}


@pytest.mark.parametrize("name", OTHERS)
def test_each_argument_that_is_compared_makes_another_fit(name: str) -> None:
    model, (x, y) = network("sgd"), data()
    fit(model, x, y)
    assert is_again(model, x, y)
    for value in OTHERS[name]:
        assert not is_again(model, x, y, **{name: value}), value


def test_each_argument_of_a_fit_is_compared_or_looked_at_anyway() -> None:
    compared = {*fitting._NUMBERS, *fitting._USUALLY_NONE}
    anyway = {"callbacks", "loader_workers", "verbose", "prepared"}  # in each fit, or of no account
    own = {"model", "x", "y", "again"}  # compared by LastFit itself; and the last fit
    assert compared == OTHERS.keys() and not compared & (anyway | own)
    assert compared | anyway | own == signature(fitting.new_fit).parameters.keys()


@needs_compiler
def test_on_a_device_arrays_are_looked_at_in_each_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    (x, y), bad = data(), data()[0]
    bad[7, 1] = np.inf
    stay = lambda model, what, arrays, device: list(arrays)  # noqa: E731  # as where there is no room
    with on("emulated"):
        for resident in (given.resident, stay):
            monkeypatch.setattr(given, "resident", resident)
            model = network("sgd", device="cuda")
            fit(model, x, y)
            assert (model._last_fit is None) == (resident is not stay)
            assert model._last_fit is None or not is_again(model, x, y)
            with pytest.raises(DataError, match="x: row 7, column 1 is inf"):
                fit(model, bad, y)


def test_each_of_other_arrays_is_looked_at() -> None:
    model, (x, y) = network("sgd"), data()
    fit(model, x, y)
    bad = x.copy()
    bad[7, 1] = np.inf
    bad.flags.writeable = False
    for _ in range(2):
        with pytest.raises(DataError, match="x: row 7, column 1 is inf"):
            fit(model, bad, y)


def test_another_loss_looks_at_targets_in_its_own_way() -> None:
    x, y = data()
    targets = np.stack([y, 5 - y], axis=1).astype(np.float32)
    model = network("sgd", loss="mean_squared_error", metrics=[])
    for _ in range(2):
        fit(model, x, targets)
    model.loss = "binary_cross_entropy"
    before = digest(model)
    with pytest.raises(DataError, match="expected 0, 1 or a probability between them"):
        fit(model, x, targets)
    assert digest(model) == before


def test_a_preparation_that_is_new_is_fitted() -> None:
    model, (x, y) = network("sgd"), data()
    for _ in range(2):
        fit(model, x, y)
    model.preparation = md.data.Standardize()
    fit(model, x, y)
    assert isinstance(model.preparation, md.data.Preparation)


def test_copies_of_a_model_have_no_last_fit() -> None:
    model, (x, y) = network("sgd"), data()
    fit(model, x, y)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert twin._last_fit is None
        fit(twin, x, y)
