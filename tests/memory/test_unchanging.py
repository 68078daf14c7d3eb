"""Arrays that nobody may write are known again; others never are."""

from __future__ import annotations

import numpy as np

from magmadnn.memory.unchanging import Noted, ReadOnlyKey


def frozen(count: int = 7) -> np.ndarray:
    array = np.arange(count)
    array.flags.writeable = False
    return array


def test_a_read_only_array_is_known_again() -> None:
    array, seen = frozen(), Noted()
    assert array not in seen
    seen.add(array)
    assert array in seen
    assert array[:3] not in seen
    assert array[1:] not in seen
    assert frozen() not in seen


def test_what_may_be_written_is_never_noted() -> None:
    array, seen = np.arange(7), Noted()
    seen.add(array)
    assert array not in seen
    view = array[:]
    view.flags.writeable = False  # but the array itself may be written
    assert ReadOnlyKey.of(view) is None


def test_an_array_that_was_opened_for_writing_again_is_not_known() -> None:
    array = frozen()
    note = ReadOnlyKey.of(array)
    assert note is not None
    assert note.is_still(array)
    array.flags.writeable = True
    assert not note.is_still(array)


def test_views_of_read_only_arrays_are_known_by_where_they_lie() -> None:
    array = frozen(12)
    note = ReadOnlyKey.of(array.reshape(3, 4))
    assert note is not None
    assert note.is_still(array.reshape(3, 4))
    assert not note.is_still(array.reshape(4, 3))


def test_a_note_does_not_outlive_its_array() -> None:
    array = frozen()
    note = ReadOnlyKey.of(array)
    del array
    assert note is not None
    assert not note.is_still(frozen())
