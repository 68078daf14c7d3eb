"""CIFAR-10's binary batches."""

from __future__ import annotations

import numpy as np

import magmadnn.data as data


def test_batches_in_the_order_of_their_numbers(tmp_path, cifar_files):
    records = cifar_files()
    (x_train, y_train), (x_test, y_test) = data.cifar10(tmp_path)
    names = ["data_batch_1.bin", "data_batch_2.bin", "data_batch_10.bin"]
    train = np.concatenate([records[name] for name in names])
    assert x_train.shape == (39, 32, 32, 3)
    assert x_test.shape == (13, 32, 32, 3)
    assert x_train.dtype == np.float32
    assert y_train.dtype == np.int64
    np.testing.assert_array_equal(y_train, train[:, 0])
    np.testing.assert_array_equal(y_test, records["test_batch.bin"][:, 0])
    # Byte 1 + 1024 c + 32 h + w of a record is the channel c of the pixel (h, w).
    for row, h, w, c in [(0, 0, 0, 0), (17, 30, 5, 2), (38, 3, 31, 1)]:
        byte = train[row, 1 + 1024 * c + 32 * h + w]
        assert x_train[row, h, w, c] == np.float32(byte) / np.float32(255.0)


def test_class_names(tmp_path, cifar_files):
    cifar_files()
    assert data.cifar10_classes(tmp_path) is None
    names = "airplane automobile bird cat deer dog frog horse ship truck".split()
    (tmp_path / "batches.meta.txt").write_text("\n".join(names) + "\n\n")
    assert data.cifar10_classes(tmp_path) == tuple(names)


def test_a_plain_batch_is_not_read_twice(tmp_path, cifar_files):
    records = cifar_files()
    (tmp_path / "data_batch_2.bin").write_bytes(records["data_batch_2.bin"].tobytes())
    (x_train, _), _ = data.cifar10(tmp_path)
    assert len(x_train) == 39
