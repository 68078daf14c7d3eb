"""Data named by one text: recognised, split, described and prepared."""

from __future__ import annotations

import json

import numpy as np
import pytest

import magmadnn.data as data
from magmadnn.errors import ArgumentError, DataError
from magmadnn.ops import philox


@pytest.fixture
def big_wine(text_file):
    rows = [f"{7 + i % 13 / 10};{i * 37 % 101 / 10};{3 + i * 7 % 6}" for i in range(97)]
    return text_file('"fixed acidity";"pH";"quality"\n' + "\n".join(rows) + "\n", "wine.csv")


def test_a_table_with_classes(big_wine):
    found = data.load(big_wine)
    assert found.description == (
        f"{big_wine}: text separated by ';', a header; 78 training and 19 test rows (split by "
        "seed 0) of 2 inputs; target 'quality': classification, 6 classes (3, 4, 5, 6, 7, 8)"
    )
    assert found.x_train.shape == (78, 2)
    assert found.x_test.shape == (19, 2)
    x, y = found.train()
    assert (x.dtype, y.dtype) == (np.float32, np.int64)
    # The mean of 78 float32 values of size 1, each rounded.
    assert np.abs(x.mean(axis=0, dtype=np.float64)).max() < np.finfo(np.float32).eps
    assert set(y.tolist()) == set(range(6))
    np.testing.assert_array_equal(found.test()[1], found.y_test.astype(int) - 3)
    expected = (found.x_test - found.x_train.mean(axis=0)) / found.x_train.std(axis=0)
    np.testing.assert_allclose(found.test()[0], expected, rtol=1e-6, atol=1e-7)


def test_a_table_with_a_quantity(big_wine):
    found = data.load(big_wine, target="pH", test_split=0.5, seed=4)
    assert found.description.endswith(
        "49 training and 48 test rows (split by seed 4) of 2 inputs; target 'pH': regression"
    )
    assert found.train()[1].dtype == np.float32
    restored = found.preparation.restore_target(found.test()[1])
    np.testing.assert_allclose(restored, found.y_test, rtol=1e-5)
    graded = data.load(big_wine, task="regression")
    assert graded.preparation.task == "regression"


def test_the_split_depends_on_the_seed_only(big_wine):
    first, again, other = (data.load(big_wine, seed=seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first.x_test, again.x_test)
    assert not np.array_equal(first.x_test, other.x_test)


def test_missing_values_in_a_table(text_file):
    rows = [f"{i % 7},{'?' if i % 10 == 3 else i * 3 % 11},{'ab'[i % 2]}" for i in range(41)]
    path = text_file("\n".join(rows), "heart.data")
    filled = data.load(path, missing="mean")
    assert "no header, 4 rows with missing values filled with means; 33 train" in filled.description
    assert filled.preparation.missing == "mean"
    both = np.concatenate([filled.x_train, filled.x_test])
    assert np.isnan(both).sum() == 4
    for x, raw in [
        (filled.train()[0], filled.x_train),
        (filled.test()[0], filled.x_test),
    ]:
        assert (x[np.isnan(raw)] == 0.0).all()
        assert np.isfinite(x).all()
    dropped = data.load(path, missing="drop")
    assert ", 4 rows with missing values left out; 30 training" in dropped.description


def test_mnist_by_name(monkeypatch, tmp_path, idx_files):
    idx_files(tmp_path)
    monkeypatch.setattr("magmadnn.data._sources.mnist", lambda: data.idx_folder(tmp_path))
    found = data.load("mnist")
    assert found.description == (
        "mnist: MNIST; 53 training and 17 test rows of 5 x 7 x 1 inputs; classification, "
        "4 classes (0, 1, 2, 3)"
    )


def test_a_folder_with_idx_files(tmp_path, idx_files):
    arrays = idx_files()
    found = data.load(tmp_path)
    assert found.description.startswith(f"{tmp_path}: IDX images; 53 training and 17 test rows of")
    assert found.preparation.input_shape == (5, 7, 1)
    # One mean and one deviation for all pixels, which are bytes / 255 in float32.
    pixels = arrays["train-images-idx3-ubyte"] / 255.0
    eps = np.finfo(np.float32).eps
    np.testing.assert_allclose(found.preparation.mean, [pixels.mean()], rtol=eps)
    np.testing.assert_allclose(found.preparation.std, [pixels.std()], rtol=eps)
    np.testing.assert_array_equal(found.train()[1], arrays["train-labels-idx1-ubyte"])


def test_a_folder_with_cifar_batches(tmp_path, cifar_files):
    records = cifar_files()
    plain = data.load(tmp_path)
    assert plain.preparation.input_shape == (32, 32, 3)
    assert len(plain.preparation.mean) == 3
    assert plain.preparation.classes == tuple("0123456789")
    names = "plane car bird cat deer dog frog horse ship truck".split()
    (tmp_path / "batches.meta.txt").write_text("\n".join(names))
    named = data.load(tmp_path)
    assert named.preparation.classes == tuple(names)
    np.testing.assert_array_equal(named.test()[1], records["test_batch.bin"][:, 0])
    assert named.preparation.restore_target(named.test()[1]).tolist() == named.y_test.tolist()


def test_npz_with_and_without_a_test_set(tmp_path):
    x = philox.normal(1, 2, 60 * 3).reshape(60, 3)
    y = np.arange(60) % 3
    np.savez(tmp_path / "one.npz", x=x, y=np.eye(3)[y])
    np.savez(tmp_path / "two.npz", x_train=x, y_train=y, x_test=x[:7], y_test=y[:7])
    one, two = data.load(tmp_path / "one.npz"), data.load(tmp_path / "two.npz")
    assert (len(one.x_train), len(one.x_test)) == (48, 12)
    assert (len(two.x_train), len(two.x_test)) == (60, 7)
    assert one.preparation.classes == two.preparation.classes == ("0", "1", "2")
    assert two.description.endswith(
        ".npz arrays; 60 training and 7 test rows of 3 inputs; classification, 3 classes (0, 1, 2)"
    )


def test_bytes_in_an_npz_are_images(tmp_path):
    images = (np.arange(40 * 6) * 11 % 256).astype(np.uint8).reshape(40, 3, 2)
    np.savez(tmp_path / "a.npz", x=images, y=np.arange(40) % 2)
    found = data.load(tmp_path / "a.npz")
    assert found.preparation.input_shape == (3, 2, 1)
    assert found.x_train.dtype == np.float32
    assert found.x_train.max() <= 1.0


def test_nan_in_an_npz_is_a_missing_value(tmp_path):
    x = philox.normal(1, 2, 40).reshape(20, 2)
    x[3, 1] = x[3, 0] = x[11, 1] = np.nan
    np.savez(tmp_path / "a.npz", x=x, y=np.arange(20) % 2)
    assert len(data.load(tmp_path / "a.npz", missing="drop").x_train) == 14
    filled = data.load(tmp_path / "a.npz", missing="mean")
    assert np.isfinite(filled.train()[0]).all()
    y = np.linspace(0.5, 2.5, 20)
    y[5] = np.nan  # a target is never filled, but its row can be left out
    np.savez(tmp_path / "b.npz", x=x, y=y)
    dropped = data.load(tmp_path / "b.npz", missing="drop")
    assert len(dropped.x_train) + len(dropped.x_test) == 17


def test_one_column_in_an_npz(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.arange(20.0), y=np.arange(20)[:, None] * 0.5)
    found = data.load(tmp_path / "a.npz")
    assert found.preparation.input_shape == (1,)
    assert found.preparation.target_shape == ()


def kept(found: data.Dataset) -> data.Preparation:
    """The preparation as it comes back with a saved model."""
    return data.Preparation.from_json(json.loads(json.dumps(found.preparation.to_json())))


def test_rows_to_evaluate_are_prepared_as_in_training(big_wine):
    found = data.load(big_wine, seed=3)
    part = data.load_for(kept(found), big_wine, test_split=0.2, seed=3)
    np.testing.assert_array_equal(part.x, found.test()[0])
    np.testing.assert_array_equal(part.y, found.test()[1])
    np.testing.assert_array_equal(part.raw_target, found.y_test)
    assert part.description.endswith("a header; 19 test rows (split by seed 3)")
    whole = data.load_for(kept(found), big_wine)
    assert whole.description.endswith("a header; 97 rows")
    assert whole.lines.tolist() == list(range(2, 99))
    position = np.searchsorted(whole.lines, part.lines)
    np.testing.assert_array_equal(whole.x[position], part.x)


def test_rows_to_predict_need_no_target(big_wine, text_file, tmp_path):
    found = data.load(big_wine)
    other = text_file("pH;fixed acidity\n3.5;7.5\n", "new.csv")
    rows = data.load_for(kept(found), other, with_target=False)
    assert rows.y is None
    assert rows.raw_target is None
    expected = found.preparation.apply_inputs(np.array([[7.5, 3.5]]))
    np.testing.assert_array_equal(rows.x, expected)


def test_missing_values_of_rows_to_predict(text_file):
    lines = [f"{i % 7},{i * 3 % 11},{'ab'[i % 2]}" for i in range(40)]
    path = text_file("\n".join(["2,?,a", *lines]))
    new = text_file("5,?\n1,2\n", "new.csv")
    filled, dropped = (kept(data.load(path, missing=missing)) for missing in ("mean", "drop"))
    rows = data.load_for(filled, new, with_target=False)
    assert rows.x[0, 1] == 0.0
    with pytest.raises(DataError, match=r"missing in 1 row \(line 1\)"):
        data.load_for(dropped, new, with_target=False)
    rows = data.load_for(dropped, new, with_target=False, missing="mean")
    assert rows.x[0, 1] == 0.0
    assert len(data.load_for(dropped, path).x) == 40


def test_other_data_for_the_model_of_images(tmp_path, idx_files):
    idx_files(tmp_path / "digits")
    found = data.load(tmp_path / "digits")
    rows = data.load_for(kept(found), tmp_path / "digits")
    np.testing.assert_array_equal(rows.x, found.test()[0])
    assert rows.description.endswith("IDX images; 17 test rows")
    assert rows.lines is None
    inputs_only = data.load_for(kept(found), tmp_path / "digits", with_target=False)
    assert inputs_only.y is None


def test_a_class_that_training_did_not_know_is_named_with_its_line(text_file):
    found = data.load(text_file("1,a\n2,b\n3,a\n4,b\n"))
    other = text_file("1,a\n2,c\n", "other.csv")
    with pytest.raises(DataError) as error:
        data.load_for(found.preparation, other)
    assert str(error.value) == "target: line 2 is 'c', which is none of the 2 classes a, b"


def test_a_split_that_is_no_share(big_wine):
    with pytest.raises(ArgumentError, match=r"must be between 0 and 1, got 1\.0"):
        data.load(big_wine, test_split=1.0)
