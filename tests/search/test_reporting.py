"""Importance, pictures and the page of a study."""

from __future__ import annotations

import random
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from magmadnn.errors import ArgumentError, UnknownNameError
from magmadnn.search.reporting import drawing
from magmadnn.search.spaces.space import Space
from magmadnn.search.study import Study
from magmadnn.search.trials.records import DONE, FAILED, STOPPED, Trial
from tests.mistakes import error_of
from tests.search.problems import SPACE, S, build, table

X, Y = table()


def made(trials: int = 200, **options: Any) -> Study:
    """A study of a plane that was never trained: `a` counts most, then `kind`; `b` counts nothing."""
    space = Space.of(
        {
            "a": S.uniform(0.0, 1.0),
            "kind": S.choice(["<b>x", "y"]),
            "b": S.integer(1, 30),
            "m": S.uniform(0.0, 1.0).when(kind="y"),
            "same": 3,
        }
    )
    drawn = random.Random(5)
    found = []
    for number in range(trials):
        point = space.point_at([drawn.random() for _ in space.dimensions])
        value = 3 * point["a"] + (point["kind"] == "y") + 0.1 * drawn.random()
        state = (DONE, STOPPED, FAILED)[
            (number % 7 == 3) + 2 * (number % 11 == 5 and number % 7 != 3)
        ]
        values = () if state == FAILED else (value, 5 - value**2)[: options.get("objectives", 1)]
        metrics = {"loss": -value, "epochs": 3.0, "seconds": 1 + point["b"]}
        reason = "<script>alert(1)</script>" if state == FAILED else ""
        found.append(Trial(number, point, state, values, metrics, reason))
    names = ("value", "other")[: options.get("objectives", 1)]
    return Study(space, names, (1,) * len(names), found, method="random")


def test_importance_is_the_share_that_a_parameter_explains() -> None:
    study = made()
    found = study.importance()
    assert next(iter(found)) == "a"
    assert found["a"] > 0.7  # 9/12 of 9/12 + 1/4
    assert 0.1 < found["kind"] < 0.35
    assert found["b"] < 0.05
    assert "same" not in found
    for seed in range(5):  # values by chance: what is explained is next to nothing
        drawn = random.Random(seed)
        chance = [Trial(t.number, t.point, DONE, (drawn.random(),), {}) for t in study.trials]
        study_of_chance = Study(study.space, ("value",), (1,), chance)
        assert max(study_of_chance.importance().values()) < 0.09
    assert made(4).importance() == {}
    assert error_of(lambda: study.importance("valeu"))[0] is UnknownNameError


class Page(HTMLParser):
    """Tags that are open, pictures, words."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.stack: list[str] = []
        self.sources: list[str] = []
        self.tags: list[str] = []
        self.words = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)
        self.sources += [value for key, value in attrs if key in ("src", "href")]
        if tag not in ("meta", "img", "br"):
            self.stack.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.stack.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data


@pytest.mark.parametrize("objectives", [1, 2])
def test_the_page_holds_everything(tmp_path: Path, objectives: int) -> None:
    pytest.importorskip("matplotlib")
    study = made(120, objectives=objectives)
    path = study.report(tmp_path / "report")
    assert path == tmp_path / "report" / "index.html"
    text = path.read_text()
    page = Page(text)
    assert not page.stack
    assert "script" not in page.tags
    assert len(page.sources) == 4
    assert all(source.startswith("data:image/png;base64,") for source in page.sources)
    assert "<script>alert(1)" in page.words  # as text
    assert "<b>x" in page.words
    assert page.tags.count("tr") > 120
    names = sorted(p.name for p in path.parent.iterdir())
    assert names == sorted(
        ["index.html", "trials.csv", "history.png", "front.png", "parallel.png", "importance.png"]
    )
    assert (path.parent / "trials.csv").read_text() == study.table().to_csv()


def test_a_study_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    study = S.run(build, SPACE, X, Y, trials=8, epochs=3, seed=1)
    figure = study.plot(tmp_path / "study")
    assert (tmp_path / "study.png").read_bytes().startswith(b"\x89PNG")
    assert len(figure.axes) == 4
    study.plot(tmp_path / "study.svg")
    assert error_of(lambda: study.plot(tmp_path / "study.xyz"))[0] is UnknownNameError
    empty = Study(study.space, study.objectives, study.signs, [])
    assert error_of(empty.plot)[0] is ArgumentError


def test_all_trials_lie_within_the_picture_of_time() -> None:
    """The best is the fastest of all: the axis reaches to the slowest all the same."""
    pytest.importorskip("matplotlib")
    trials = [
        Trial(k, {"a": 0.1 * k, "kind": "x"}, DONE, (float(k),), {"seconds": 9.0 - k})
        for k in range(8)
    ]
    space = Space.of({"a": S.uniform(0, 1), "kind": S.choice(["x", "y"])})
    figure = drawing.overview(Study(space, ("value",), (1,), trials, None, "random", 1))
    (panel,) = [p for p in figure.axes if p.get_title() == "Objective and time"]
    low, high = panel.get_ylim()
    assert low == 0.0
    assert high > 9.0
