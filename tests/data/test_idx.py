"""MNIST itself and folders in its format."""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

import magmadnn.data as data
from magmadnn.data.images.idx import IDX_FILES, MNIST_GZ_SHA256, MNIST_SHA256
from magmadnn.errors import DataError, FileError

REPOSITORY = Path(__file__).parents[2]
MNIST = REPOSITORY / "data" / "mnist"


@pytest.fixture(scope="module")
def digits():
    return data.mnist(MNIST)


def test_mnist_is_the_real_one(digits):
    (x_train, y_train), (x_test, y_test) = digits
    assert x_train.shape == (60000, 28, 28, 1)
    assert x_test.shape == (10000, 28, 28, 1)
    assert x_train.dtype == x_test.dtype == np.float32
    assert y_train.dtype == y_test.dtype == np.int64
    assert y_train.tolist()[:8] == [5, 0, 4, 1, 9, 2, 1, 3]
    # Numbers of examples of each digit, as published.
    assert np.bincount(y_train).tolist() == [
        5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949,
    ]  # fmt: skip
    assert np.bincount(y_test).tolist() == [
        980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009,
    ]  # fmt: skip
    assert x_train.min() == 0.0
    assert x_train.max() == 1.0
    # The mean that is commonly quoted, 0.1307.
    assert round(float(x_train.mean(dtype=np.float64)), 4) == 0.1307
    assert x_train[0, 5, 12, 0] == np.float32(3.0) / np.float32(255.0)


def test_checksums_are_those_of_the_files_in_the_repository():
    for name in IDX_FILES:
        packed = (MNIST / f"{name}.gz").read_bytes()
        assert hashlib.sha256(packed).hexdigest() == MNIST_GZ_SHA256[name]
        assert hashlib.sha256(gzip.decompress(packed)).hexdigest() == MNIST_SHA256[name]


@pytest.mark.parametrize("kind", ["environment", "environment/mnist", "cwd", "cwd/mnist", "cache"])
def test_every_place_is_searched(kind, tmp_path, monkeypatch):
    root, _, subfolder = kind.partition("/")
    place = {
        "environment": tmp_path / "mine",
        "cwd": tmp_path / "data",
        "cache": tmp_path / "cache" / "magmadnn" / "mnist",
    }[root] / subfolder
    for name in IDX_FILES:  # small files would do but for the checksums
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{name}.gz").symlink_to(MNIST / f"{name}.gz")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("MAGMADNN_DATA", str(tmp_path / "mine"))
    read = []
    monkeypatch.setattr(
        "magmadnn.data.images.idx._read_folder", lambda folder, sha: read.append(folder)
    )
    data.mnist()
    assert [folder.resolve() for folder in read] == [place.resolve()]


def test_the_environment_comes_before_the_working_folder(tmp_path, monkeypatch, idx_files):
    idx_files(tmp_path / "mine")
    idx_files(tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MAGMADNN_DATA", str(tmp_path / "mine"))
    with pytest.raises(DataError) as error:
        data.mnist()
    assert str(error.value).startswith(f"{tmp_path}/mine/train-images-idx3-ubyte.gz: is not MNIST")


def test_a_given_folder_is_the_only_place(tmp_path, monkeypatch):
    monkeypatch.setenv("MAGMADNN_DATA", str(MNIST))
    with pytest.raises(DataError) as error:
        data.mnist(tmp_path)
    assert str(error.value) == (
        "MNIST: train-images-idx3-ubyte.gz is missing (and 3 more of the four files), looked in "
        f"{tmp_path}, {tmp_path}/mnist: put it into one of these folders (SHA-256 "
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609)"
    )


def test_what_is_missing_without_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("MAGMADNN_DATA", raising=False)
    Path("data").mkdir()
    for name in (*IDX_FILES[:2], IDX_FILES[3]):
        shutil.copy(MNIST / f"{name}.gz", "data")
    with pytest.raises(DataError) as error:
        data.mnist()
    assert str(error.value) == (
        "MNIST: t10k-images-idx3-ubyte.gz is missing, looked in data, data/mnist, "
        f"{tmp_path}/cache/magmadnn/mnist: put it into one of these folders, or set MAGMADNN_DATA to the one "
        "it is in (SHA-256 "
        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6)"
    )


def test_files_packed_anew_are_mnist_too(tmp_path):
    for name in IDX_FILES:
        raw = gzip.decompress((MNIST / f"{name}.gz").read_bytes())
        packed = name == "t10k-labels-idx1-ubyte"
        path = tmp_path / (name + ".gz" if packed else name.replace("-idx", ".idx"))
        path.write_bytes(gzip.compress(raw, 1) if packed else raw)
    (_, _), (_, y_test) = data.mnist(tmp_path)
    assert y_test.tolist()[:5] == [7, 2, 1, 0, 4]


@pytest.mark.parametrize("ending", ["", ".gz", ".xz"])
def test_idx_folder(ending, tmp_path, idx_files):
    arrays = idx_files(ending=ending)
    (x_train, y_train), (x_test, y_test) = data.idx_folder(tmp_path)
    assert x_train.shape == (53, 5, 7, 1)
    assert x_test.shape == (17, 5, 7, 1)
    pixels = arrays["train-images-idx3-ubyte"].astype(np.float32)[..., None]
    np.testing.assert_array_equal(x_train, pixels / np.float32(255.0))
    np.testing.assert_array_equal(y_train, arrays["train-labels-idx1-ubyte"])
    np.testing.assert_array_equal(y_test, arrays["t10k-labels-idx1-ubyte"])


def test_mnist_refuses_other_data_in_its_format(tmp_path, idx_files):
    arrays = idx_files(ending="")
    path = tmp_path / "train-images-idx3-ubyte"
    got = hashlib.sha256(path.read_bytes()).hexdigest()
    assert arrays
    with pytest.raises(DataError) as error:
        data.mnist(tmp_path)
    assert str(error.value) == (
        f"{path}: is not MNIST's file: the content's SHA-256 is {got}, expected "
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db: fetch it again, or "
        "read other data in this format with md.data.idx_folder"
    )


def test_swapped_training_and_test_files_are_refused(tmp_path):
    for name in IDX_FILES:
        other = name.replace("train", "t10k") if "train" in name else name.replace("t10k", "train")
        (tmp_path / f"{name}.gz").symlink_to(MNIST / f"{other}.gz")
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte\.gz: is not MNIST's file"):
        data.mnist(tmp_path)


def test_an_unreadable_file(tmp_path, idx_files, monkeypatch):
    idx_files()

    def refuse(path, flags):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(FileError) as error:
        data.idx_folder(tmp_path)
    assert str(error.value) == (
        f"{tmp_path}/train-images-idx3-ubyte.gz: cannot be read (Permission denied): "
        "check the path and its permissions"
    )


def test_gzip_files_of_several_members_and_padding(tmp_path, idx_files):
    arrays = idx_files(ending="")
    path = tmp_path / "train-labels-idx1-ubyte"
    raw = path.read_bytes()
    path.unlink()
    members = gzip.compress(raw[:19]) + gzip.compress(raw[19:]) + bytes(512)
    (tmp_path / "train-labels-idx1-ubyte.gz").write_bytes(members)
    (_, y_train), _ = data.idx_folder(tmp_path)
    np.testing.assert_array_equal(y_train, arrays["train-labels-idx1-ubyte"])
