"""Principal components as a part of the preparation: of training rows only, kept, exported."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.errors import ArgumentError, DataError

Command = Callable[..., Any]


def rows(count: int = 61, *shape: int) -> np.ndarray:
    """Made of three numbers each, with some noise, in columns of different size."""
    draw = np.random.default_rng(3)
    size = int(np.prod(shape or (7,)))
    made = draw.normal(size=(count, 3)) @ draw.normal(size=(3, size))
    made += 0.05 * draw.normal(size=made.shape)
    return (made * 10.0 ** (np.arange(size) % 4) + 5).reshape(count, *(shape or (7,)))


@pytest.mark.parametrize("shape", [(7,), (3, 4, 2)])
def test_coordinates_are_those_of_the_singular_vectors_of_the_training_rows(shape):
    x, train = rows(61, *shape), np.arange(0, 61, 2)
    made = md.data.Preparation.fit(x, np.arange(61) % 2, rows=train, pca=3)
    assert made.components is not None
    found = made.apply_inputs(x)
    assert found.shape == (61, 3) == (61, *made.prepared_shape)
    assert found.dtype == np.float32
    axes = tuple(range(len(shape)))
    z = (x - x[train].mean(axes)) / x[train].std(axes)
    flat = z.reshape(61, -1)
    centred = flat - flat[train].mean(0)
    _, s, v = np.linalg.svd(centred[train])
    expected = centred @ v[:3].T
    expected /= np.sqrt((s[:3] ** 2).mean() / (len(train) - 1))
    expected *= np.sign((expected * found).sum(0))
    # inputs were rounded to float32 before: eps of numbers of size 3, summed over the columns
    np.testing.assert_allclose(found, expected, atol=64 * np.finfo(np.float32).eps * flat.shape[1])
    np.testing.assert_allclose(found[train].var(0, ddof=1).mean(), 1, rtol=1e-5)
    kept = (s[:3] ** 2).sum() / (s**2).sum()
    np.testing.assert_allclose(made.components.explained, kept, rtol=1e-5)


def test_kept_as_plain_data_and_refused_where_damaged():
    made = md.data.Preparation.fit(rows(), np.arange(61) % 2, pca=2)
    kept = made.to_json()
    assert md.data.Preparation.from_json(json.loads(json.dumps(kept))) == made
    assert kept["version"] == 2  # which a program that knows no components refuses
    for wrong in (
        {**kept["components"], "mean": [1.0]},
        {**kept["components"], "directions": []},
        {**kept["components"], "directions": [[1]]},
        {**kept["components"], "explained": None},
        [1.0],
    ):
        with pytest.raises(DataError, match="components"):
            md.data.Preparation.from_json({**kept, "components": wrong})
    assert made.components is not None
    with pytest.raises(DataError, match=r"components of 3 inputs .* the shape \(7,\)"):
        replace(
            made,
            components=md.data.preparation.components.Components((0.0,) * 3, ((1.0,) * 3,), 1.0),
        )


def test_more_components_than_there_are_and_what_is_no_number():
    with pytest.raises(
        DataError, match=r"pca: 8 components of 7 inputs and 61 .* at most 7: ask for"
    ):
        md.data.Preparation.fit(rows(), np.arange(61) % 2, pca=8)
    with pytest.raises(DataError, match="at most 4"):
        md.data.Preparation.fit(rows(), np.arange(61) % 2, pca=5, rows=np.arange(5))
    for wrong in (0, True, 1.5, "3"):
        with pytest.raises(ArgumentError, match="pca must be a positive integer"):
            md.data.Standardize(pca=wrong)


def test_a_model_prepares_raw_rows_by_components_that_validation_rows_do_not_touch(tmp_path):
    x, y = rows(), np.arange(61) % 2
    model = md.Model(
        [md.layers.Input((3,)), md.layers.Dense(2)],
        loss="cross_entropy",
        optimizer="sgd",
        preparation=md.data.Standardize(pca=3),
        seed=0,
    )
    model.fit(x, y, epochs=1, validation_split=0.3, verbose=False)
    kept, _ = md.data.batching.split_rows(61, 0.3, 0)
    assert model.preparation == md.data.Preparation.fit(x, y, rows=kept, pca=3)
    model.save(tmp_path / "m")
    np.testing.assert_array_equal(md.load(tmp_path / "m").predict(x), model.predict(x))
    with pytest.raises(md.errors.ShapeError, match=r"x becomes \(2,\) inputs"):
        md.Model(
            [md.layers.Input((3,)), md.layers.Dense(2)],
            loss="cross_entropy",
            optimizer="sgd",
            preparation=md.data.Standardize(pca=2),
        ).fit(x, y, epochs=1, verbose=False)


def test_exported_scaling_holds_the_components():
    from magmadnn.training.export.exported_scaling import with_scaling

    x, y = rows(), np.arange(61) % 2
    x[3, 2] = np.nan
    made = md.data.Preparation.fit(x, y, missing="mean", pca=3)
    model = md.Model(
        [md.layers.Input((3,)), md.layers.Dense(2)], loss="cross_entropy", preparation=made, seed=0
    )
    whole = with_scaling(model, made, md.Model)
    # the graph has float64 where the preparation rounds its inputs to float32
    np.testing.assert_allclose(whole.predict(x), model.predict_probability(x), rtol=2e-5)


def test_on_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    monkeypatch.chdir(tmp_path)
    table = np.column_stack([rows(90), np.arange(90) % 2])
    np.savetxt("t.csv", table, delimiter=",", header="a,b,c,d,e,f,g,kind", comments="")
    from magmadnn.cli import main

    words = "--data t.csv --pca 3 --epochs 2 --hidden 3 --validation-split 0.2 --out r"
    assert main(["train", *words.split()]) == 0
    assert "of 7 inputs, 3 components of them with 99." in capsys.readouterr().out
    model = md.load("r/model")
    assert model.inputs[0].shape[1:] == (3,)
    assert main("predict r --data t.csv --out p.csv".split()) == 0
    assert len(Path("p.csv").read_text().splitlines()) == 91
    assert main(["summary", "r"]) == 0
    assert "inputs: 7, 3 principal components of them" in capsys.readouterr().out
    assert main("train --data t.csv --pca 9 --epochs 1 --quiet --out s".split()) != 0
    assert "pca: 9 components of 7 inputs" in capsys.readouterr().err
    assert main(["evaluate", "r", "--data", "t.csv"]) == 0
