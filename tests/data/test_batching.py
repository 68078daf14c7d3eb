"""Batches: order, structure, memory maps."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

import magmadnn.data as data
from magmadnn.data._structure import is_mapped, take_rows
from magmadnn.ops import philox

X = np.arange(23 * 3, dtype=np.float32).reshape(23, 3) + 1.0
Y = np.arange(23) * 7 % 23


def test_without_a_seed_rows_come_as_they_stand():
    found = list(data.batches((X, Y), 5))
    assert [len(x) for x, _ in found] == [5, 5, 5, 5, 3]
    np.testing.assert_array_equal(np.concatenate([x for x, _ in found]), X)
    np.testing.assert_array_equal(np.concatenate([y for _, y in found]), Y)
    assert all(np.shares_memory(x, X) for x, _ in found)


def test_shuffled_rows_stay_together_and_each_comes_once():
    found = list(data.batches((X, Y), 5, seed=3))
    assert [len(x) for x, _ in found] == [5, 5, 5, 5, 3]
    y = np.concatenate([y for _, y in found])
    assert sorted(y.tolist()) == sorted(Y.tolist())
    assert y.tolist() != Y.tolist()
    for xb, yb in found:
        np.testing.assert_array_equal(xb, X[np.argsort(Y)[yb]])


def test_the_order_depends_on_seed_and_epoch_only():
    def rows(**arguments):
        batch_size = arguments.pop("batch_size", 5)
        return np.concatenate(list(data.batches(Y, batch_size, **arguments))).tolist()

    assert rows(seed=3) == rows(seed=3) == rows(seed=3, batch_size=11)
    assert rows(seed=3) == Y[data.order(23, 3)].tolist()
    assert rows(seed=3, epoch=4) == Y[data.order(23, 3, 4)].tolist()
    orders = [rows(seed=seed, epoch=epoch) for seed in range(3) for epoch in range(3)]
    assert len({tuple(order) for order in orders}) == 9
    assert rows(seed=3, shuffle=False) == Y.tolist()


def test_the_order_is_fixed_for_all_time():
    """Resuming a run after an upgrade needs the same order: these numbers must not change."""
    assert data.order(11, seed=0).tolist() == [1, 0, 10, 2, 3, 4, 8, 9, 7, 5, 6]
    stream = philox.stream_of("shuffle", 2)
    np.testing.assert_array_equal(data.order(101, 7, 2), philox.permutation(101, 7, stream))


def test_going_on_in_mid_epoch():
    whole = list(data.batches((X, Y), 5, seed=3, epoch=1))
    for start in range(6):
        rest = list(data.batches((X, Y), 5, seed=3, epoch=1, start=start))
        assert len(rest) == 5 - start
        for (x, y), (x_rest, y_rest) in zip(whole[start:], rest, strict=True):
            np.testing.assert_array_equal(x, x_rest)
            np.testing.assert_array_equal(y, y_rest)


@pytest.mark.parametrize(("rows", "size"), [(23, 5), (20, 5), (3, 7), (1, 1)])
def test_a_last_partial_batch_can_be_dropped(rows, size):
    for drop_last in (False, True):
        found = list(data.batches(X[:rows], size, drop_last=drop_last))
        assert len(found) == data.batch_count(rows, size, drop_last=drop_last)
        assert sum(map(len, found)) == (rows // size * size if drop_last else rows)


def test_any_structure_of_arrays():
    arrays = {"in": [X, (X[:, 0], Y)], "out": Y}
    for seed in (None, 3):
        batch = next(data.batches(arrays, 4, seed=seed))
        expected = np.arange(4) if seed is None else data.order(23, seed)[:4]
        assert list(batch) == ["in", "out"]
        assert isinstance(batch["in"], list)
        assert isinstance(batch["in"][1], tuple)
        np.testing.assert_array_equal(batch["in"][0], X[expected])
        np.testing.assert_array_equal(batch["in"][1][0], X[expected, 0])
        np.testing.assert_array_equal(batch["in"][1][1], Y[expected])
        np.testing.assert_array_equal(batch["out"], Y[expected])


def test_named_tuples_stay_named():
    class Sample(NamedTuple):
        image: np.ndarray
        label: np.ndarray

    batch = next(data.batches(Sample(X, Y), 4))
    assert isinstance(batch, Sample)
    np.testing.assert_array_equal(batch.label, Y[:4])


def test_a_list_of_numbers_is_one_array():
    assert next(data.batches([(1, 2), (3, 4), (5, 6)], 2)).tolist() == [[1, 2], [3, 4]]
    assert [b.tolist() for b in data.batches([[1, 2], [3, 4], [5, 6]], 2)] == [
        [[1, 2], [3, 4]],
        [[5, 6]],
    ]


@pytest.fixture
def mapped(tmp_path):
    np.save(tmp_path / "x.npy", X)
    return np.load(tmp_path / "x.npy", mmap_mode="r")


def test_batches_of_a_memory_map_are_copies_in_memory(mapped):
    for seed in (None, 3):
        plain = data.batches((X, Y), 5, seed=seed)
        for (x, _), (x_mapped, _) in zip(
            plain, data.batches((mapped, Y), 5, seed=seed), strict=True
        ):
            np.testing.assert_array_equal(x, x_mapped)
            assert type(x_mapped) is np.ndarray
            assert not is_mapped(x_mapped)


def test_memory_maps_are_known_behind_views(mapped):
    for view in (mapped, mapped[3:], np.asarray(mapped), mapped.reshape(-1), mapped.T):
        assert is_mapped(view)
    assert not is_mapped(X)
    assert not is_mapped(mapped[[1, 2]])
    assert not is_mapped(np.array(mapped))


def test_a_memory_map_is_read_in_the_order_of_its_rows(mapped, monkeypatch):
    asked = []

    class ValidatedCopy(np.memmap):
        def __getitem__(self, index):
            asked.append(index)
            return super().__getitem__(index)

    rows = np.array([17, 2, 19, 2, 5])
    np.testing.assert_array_equal(take_rows(mapped.view(ValidatedCopy), rows), X[rows])
    assert [index.tolist() for index in asked] == [[2, 2, 5, 17, 19]]


def test_a_file_larger_than_the_memory_allowed(tmp_path):
    """A sparse file of 64 GiB: reading more than the batches would show at once."""
    big = np.memmap(tmp_path / "big", np.float32, "w+", shape=(1 << 16, 1 << 18))
    big[5, 7] = 3.5
    found = data.batches({"x": big}, 3, seed=1)
    assert next(found)["x"].shape == (3, 1 << 18)
    assert next(data.batches(big, 6))[5, 7] == 3.5
    assert data.check_arrays(big) == 1 << 16


def test_split_keeps_every_row_once():
    (x_rest, y_rest), (x_part, y_part) = data.split((X, Y), 0.2, seed=5)
    assert (len(y_rest), len(y_part)) == (18, 5)
    assert sorted([*y_rest, *y_part]) == sorted(Y)
    np.testing.assert_array_equal(x_part, X[np.argsort(Y)[y_part]])
    np.testing.assert_array_equal(x_rest, X[np.argsort(Y)[y_rest]])
    for part in (x_rest, x_part):  # rows keep their order
        assert np.all(np.diff(part[:, 0]) > 0)
    again = data.split((X, Y), 0.2, seed=5)[1][1]
    assert again.tolist() == y_part.tolist()
    assert data.split((X, Y), 0.2, seed=6)[1][1].tolist() != y_part.tolist()


@pytest.mark.parametrize(
    ("rows", "fraction", "part"), [(2, 0.01, 1), (2, 0.99, 1), (7, 0.5, 4), (1599, 0.2, 320)]
)
def test_both_parts_of_a_split_have_rows(rows, fraction, part):
    first, second = data.split_rows(rows, fraction, 0)
    assert (len(first), len(second)) == (rows - part, part)
