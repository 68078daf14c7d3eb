"""The search for garbage pauses while programs are planned, and goes on afterwards."""

import gc
import threading

import pytest

import magmadnn as md
from magmadnn.compiler.collecting import uncollected
from magmadnn.compiler.plan import planning


@pytest.fixture(autouse=True)
def searching():
    was = gc.isenabled()
    gc.enable()
    yield
    assert gc.isenabled()
    (gc.enable if was else gc.disable)()


def test_the_last_one_inside_sets_back_how_it_was():
    with uncollected():
        with uncollected():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_threads_may_leave_in_any_order():
    first, second = uncollected(), uncollected()
    first.__enter__()
    other = threading.Thread(target=second.__enter__)
    other.start()
    other.join()
    first.__exit__(None, None, None)
    assert not gc.isenabled()  # the other one is still inside
    second.__exit__(None, None, None)
    assert gc.isenabled()


def test_what_was_off_stays_off():
    gc.disable()
    with uncollected():
        pass
    assert not gc.isenabled()
    gc.enable()


def test_an_error_does_not_leave_it_off():
    with pytest.raises(ZeroDivisionError), uncollected():
        _ = 1 / 0


def test_programs_are_planned_without_a_search(monkeypatch):
    seen, drafted = [], planning.drafted

    def watched(*given, **how):
        seen.append(gc.isenabled())
        return drafted(*given, **how)

    monkeypatch.setattr(planning, "drafted", watched)
    model = md.Model([md.layers.Input((3,)), md.layers.Dense(7)], loss="mse", optimizer="sgd")
    model.predict([[1.0, 2.0, 3.0]])
    assert seen and not any(seen)
