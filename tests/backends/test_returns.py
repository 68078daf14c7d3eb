"""What comes back while a lock is held."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from magmadnn.backends.cpu.forks import Returns


def test_what_comes_back_is_taken_at_once_or_by_who_is_next() -> None:
    taken: list[int] = []
    returns = Returns(taken.append)
    returns.put(2)
    assert taken == [2]
    with returns:
        returns.put(3)  # as garbage collection may while the lock is held
        assert taken == [2]
        returns.work_off()
        assert taken == [2, 3]
        returns.put(5)
    assert taken == [2, 3]
    with returns:
        assert taken == [2, 3, 5]


def test_an_item_that_cannot_be_taken_leaves_the_lock_free() -> None:
    def refuse(item: int) -> None:
        if item < 0:
            raise ValueError("refused")

    returns = Returns(refuse)
    with pytest.raises(ValueError, match="refused"):
        returns.put(-1)
    with returns:
        returns.put(-7)
    with pytest.raises(ValueError, match="refused"), returns:
        pass
    with returns:  # would wait for ever if it were held
        pass


def test_items_from_several_threads() -> None:
    taken: list[int] = []
    returns = Returns(taken.append)

    def work(start: int) -> None:
        for number in range(start, start + 500):
            returns.put(number)
            with returns:
                pass

    threads = [threading.Thread(target=work, args=(k * 500,)) for k in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with returns:
        assert sorted(taken) == list(range(1500))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_has_a_lock_of_its_own() -> None:
    returns = Returns(lambda item: None)
    with returns:
        child = os.fork()
        if child == 0:
            signal.alarm(20)  # a child that waits for the lock would wait for ever
            with returns:
                os._exit(0)
        _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
