"""Many models in one call: what is no model, stands there twice, or does not fit.

See `cases.py` for what the tables hold.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import magmadnn as md
from magmadnn.errors import (
    ArgumentError,
    DataError,
    IndexOutOfRangeError,
    ShapeError,
    UnknownArgumentError,
)
from tests.refusals.cases import NoEpoch, PythonCase, X, Y, check_in_python, network


def many(models: object = None, x: object = X, y: object = Y, **options: object) -> None:
    found = [network(), network(seed=1)] if models is None else models
    md.fit_many(found, x, y, **{"callbacks": [NoEpoch()], **options})


def sharing() -> list[md.Model]:
    """Two models over the same layers."""
    inputs = md.layers.Input((5,))
    hidden = md.layers.Dense(3)(inputs)
    options = {"loss": "cross_entropy", "optimizer": "adam"}
    return [md.Model(inputs=inputs, outputs=hidden, **options) for _ in range(2)]


ONE = network()
STOP = md.callbacks.EarlyStopping()
PYTHON: dict[str, PythonCase] = {
    "models: none": (
        lambda p: many([]),
        ArgumentError,
        "fit_many: models is empty; give a list of md.Model",
    ),
    "models: one without a list": (
        lambda p: many(3),
        ArgumentError,
        "fit_many: models must be a list of md.Model, got 3",
    ),
    "models: a model without a list": (
        lambda p: many(ONE),
        ArgumentError,
        f"fit_many: models must be a list of md.Model, got {ONE!r}; put it into a list",
    ),
    "models: something else": (
        lambda p: many([network(), "net"]),
        ArgumentError,
        "fit_many: models[1] must be a md.Model, got 'net'",
    ),
    "models: a function": (
        lambda p: many([network(), network]),
        ArgumentError,
        "~fit_many: models\\[1\\] must be a md.Model, got <function network at 0x[0-9a-f]+>; call it",
    ),
    "models: the same twice": (
        lambda p: many([ONE, network(), ONE]),
        ArgumentError,
        "fit_many: models[2] is models[0] again; build each model anew, or copy.deepcopy(model)",
    ),
    "models: layers that two share": (
        lambda p: many(sharing()),
        ArgumentError,
        "fit_many: models[1] shares dense_1/kernel with models[0]; build the layers of each model anew",
    ),
    "targets: none": (
        lambda p: many(y=None),
        ArgumentError,
        "fit_many: y is missing: it takes x and y as arrays or tables",
    ),
    "batch_size: as many as models": (
        lambda p: many(batch_size=[4, 8, 16]),
        ArgumentError,
        "fit_many: batch_size has 3 numbers for 2 models; give one for each, or one for all",
    ),
    "batch_size: of the second": (
        lambda p: many(batch_size=[4, 0]),
        ArgumentError,
        "fit_many: batch_size[1] must be an integer of at least 1, got 0",
    ),
    "epochs: below 0": (
        lambda p: many(epochs=-1),
        ArgumentError,
        "fit_many: epochs must be an integer of at least 0, got -1",
    ),
    "parallel: a number": (
        lambda p: many(parallel=4),
        ArgumentError,
        "~fit_many: parallel must be None .*, False .* got 4; each rank trains whole models, so no way of .*",
    ),
    "rows: of one model": (
        lambda p: many(rows=[[0, 1]]),
        ArgumentError,
        "fit_many: rows must be a list of 2, rows for each model, got 1",
    ),
    "rows: an array": (
        lambda p: many(rows=np.arange(4)),
        ArgumentError,
        "fit_many: rows must be a list of 2, rows for each model, got array([0, 1, 2, 3])",
    ),
    "rows: none for a model": (
        lambda p: many(rows=[None, []]),
        DataError,
        "fit_many: rows[1] is empty: there is nothing to train on",
    ),
    "rows: out of range": (
        lambda p: many(rows=[[0, 1, 23], None]),
        IndexOutOfRangeError,
        "fit_many: rows[0] holds row 23, but x has 23 rows: they are numbered from 0",
    ),
    "rows: from the end": (
        lambda p: many(rows=[None, [0, -1]]),
        IndexOutOfRangeError,
        "fit_many: rows[1] holds row -1, but x has 23 rows: they are numbered from 0",
    ),
    "rows: no numbers": (
        lambda p: many(rows=[None, [0.5, 1.0]]),
        ArgumentError,
        "fit_many: rows[1] must be row numbers, or True and False, got [0.5, 1.0]",
    ),
    "rows: truths of another length": (
        lambda p: many(rows=[np.ones(22, bool), None]),
        ArgumentError,
        "fit_many: rows[0] has 22 values True or False, but x has 23 rows",
    ),
    "rows: truths as numbers": (
        lambda p: many(rows=[None, np.arange(23) % 2]),
        ArgumentError,
        (
            "fit_many: rows[1] has 23 numbers that are 0 and 1, one for each row of x: as row numbers they "
            "mean the first two rows; where they choose rows, give True and False: np.asarray(rows, bool)"
        ),
    ),
    "validation: truths as numbers": (
        lambda p: many(validation_rows=[[1], [0] * 23]),
        ArgumentError,
        "~fit_many: validation_rows\\[1\\] has 23 numbers that are 0 and 1, .*",
    ),
    "validation: given twice": (
        lambda p: many(validation_rows=[[1], [2]], validation_split=0.5),
        ArgumentError,
        "fit_many: give one of validation_data, validation_rows and validation_split",
    ),
    "callbacks: one that writes files": (
        lambda p: many(callbacks=[md.callbacks.CSVLogger(p / "log.csv")]),
        ArgumentError,
        (
            "fit_many: callbacks: CSVLogger writes files, and all models would write the same; give a "
            'function of the model\'s number: callbacks=lambda k: [md.callbacks.CSVLogger(f"run-{k}")]'
        ),
    ),
    "callbacks: a function that takes no number": (
        lambda p: many(callbacks=lambda: [STOP]),
        ArgumentError,
        (
            "fit_many: callbacks: a function is called with the model's number: too many positional "
            "arguments; write lambda k: [...]"
        ),
    ),
    "callbacks: one for two models": (
        lambda p: many(callbacks=lambda number: [STOP]),
        ArgumentError,
        "fit_many: callbacks(1) gives the EarlyStopping of model 0 again; make one for each model",
    ),
    "callbacks: without a list": (
        lambda p: many(callbacks=STOP),
        ArgumentError,
        (
            "fit_many: callbacks must be a list such as [md.callbacks.EarlyStopping()], got 'EarlyStopping'; "
            "put it into a list"
        ),
    ),
    "argument: not known": (
        lambda p: many(verbos=True),
        UnknownArgumentError,
        "~fit_many: argument 'verbos' is not known: .*",
    ),
    "data: another width": (
        lambda p: many(x=X[:, :4]),
        ShapeError,
        (
            "fit: input 'input' expects samples of shape (5,), got (4,) (x has shape (23, 4)); reshape x, or "
            "change Input"
        ),
    ),
}


@pytest.mark.parametrize("name", PYTHON)
def test_python(name: str, tmp_path: Path) -> None:
    check_in_python(tmp_path, PYTHON[name])


def test_which_model_does_not_fit_the_data() -> None:
    """Others may have been trained; an error says whose it is."""
    wide = md.Model(
        [md.layers.Input((6,)), md.layers.Dense(3)], loss="cross_entropy", optimizer="adam"
    )
    with pytest.raises(ShapeError) as caught:
        many([network(), wide], callbacks=())
    assert caught.value.__notes__ == ["in the training of models[1]"]


def test_a_model_that_is_being_trained() -> None:
    model, seen = network(), []

    class Twice(md.callbacks.Callback):
        def on_epoch_end(self, fit: object) -> None:
            with pytest.raises(ArgumentError) as caught:
                md.fit_many([network(), model], X, Y)
            seen.append(str(caught.value))

    model.fit(X, Y, callbacks=[Twice()], verbose=False)
    assert seen == [
        (
            "fit_many: models[1]: this model is being trained; wait until its fit has returned, or use a "
            "copy: copy.deepcopy(model)"
        )
    ]
