"""What fit prints: rows, the bar on a terminal, and how often."""

from __future__ import annotations

import io
import re
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.errors import ArgumentError, UnknownNameError
from magmadnn.training.callbacks import progress
from magmadnn.training.callbacks.progress import Progress, for_verbosity

X = np.random.default_rng(0).normal(size=(70, 5)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int64)


class Terminal(io.StringIO):
    """Counts what is drawn."""

    def isatty(self) -> bool:
        return True

    def bars(self) -> list[str]:
        return re.findall(r"\r\x1b\[K(epoch [^\r\n]*)", self.getvalue())

    def epochs(self) -> list[int]:
        return rows_of(self.getvalue())


def rows_of(text: str) -> list[int]:
    """The epochs that have a row, which stands where a bar was cleared away."""
    return [int(n) for n in re.findall(r"^(?:.*\r\x1b\[K)? +(\d+) ", text, re.MULTILINE)]


def fit(*callbacks: md.callbacks.Callback, **options: Any) -> None:
    model = md.Model(
        [md.layers.Input((5,)), md.layers.Dense(2)],
        loss="cross_entropy", optimizer=md.optim.SGD(0.03), metrics=["accuracy"],
    )  # fmt: skip
    given = {"batch_size": 7, "epochs": 3, "verbose": False, **options}
    model.fit(X, Y, callbacks=callbacks, **given)


def ticking(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """A clock that goes on by so much each time that it is read."""
    now = [0.0]

    def monotonic() -> float:
        now[0] += seconds
        return now[0]

    monkeypatch.setattr(progress.time, "monotonic", monotonic)


def one_by_one() -> md.callbacks.Callback:
    """Makes every batch a slice of its own."""

    class Each(md.callbacks.Callback):
        def batches(self, fit: Any) -> int:
            return 1

    return Each()


def test_the_bar_is_drawn_ten_times_a_second_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    ticking(monkeypatch, 0.001)
    output = Terminal()
    fit(Progress(output), one_by_one(), epochs=10)
    assert len(output.bars()) <= 2  # 100 batches in 0.1 to 0.2 seconds of this clock
    assert output.epochs() == list(range(1, 11))


def test_the_bar_tells_where_training_is_and_how_long_it_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ticking(monkeypatch, 0.4)
    output = Terminal()
    fit(Progress(output), one_by_one(), epochs=2)
    bars = output.bars()
    assert len(bars) == 20
    assert bars[0].startswith("epoch 1/2 [#...................] batch 1/10, loss ")
    assert bars[-1].startswith("epoch 2/2 [####################] batch 10/10, loss ")
    assert bars[4].endswith(" left") and bars[-1].endswith("0:00 left")
    assert "nan" not in output.getvalue()
    assert output.getvalue().endswith("\n")  # nothing of the bar is left
    assert output.getvalue().splitlines()[-1].split("\x1b[K")[-1].split()[0] == "2"


def test_a_bar_fits_into_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    monkeypatch.setenv("LINES", "10")
    output = Terminal()
    fit(Progress(output))
    assert output.bars() and max(map(len, output.bars())) <= 29


@pytest.mark.parametrize(("verbose", "epochs", "rows"), [
    ("auto", 3, [1, 2, 3]),
    ("auto", 105, [1, *range(2, 105, 2), 105]),
    (True, 105, list(range(1, 106))),
    ("line", 3, [1, 2, 3]),
    ("bar", 3, [3]),
    ("every 10", 23, [1, 10, 20, 23]),
    (False, 3, []),
])  # fmt: skip
def test_how_many_rows_there_are(
    verbose: Any, epochs: int, rows: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    fit(epochs=epochs, verbose=verbose, batch_size=70)
    text = capsys.readouterr().out
    assert rows_of(text) == rows
    assert not set(text) & set("\r\x1b")


def test_rows_of_long_trainings_are_about_a_hundred() -> None:
    counts = {epochs: progress._readable(epochs) for epochs in (1, 100, 101, 300, 5000, 10**6)}
    assert counts == {1: 1, 100: 1, 101: 2, 300: 5, 5000: 50, 10**6: 10**4}


def test_lines_have_no_bar_on_a_terminal() -> None:
    output = Terminal()
    fit(Progress(output, bar=False))
    assert not set(output.getvalue()) & set("\r\x1b")


def test_rows_have_the_learning_rate() -> None:
    output = io.StringIO()
    fit(Progress(output), epochs=1)
    names, values = (line.split() for line in output.getvalue().splitlines())
    assert dict(zip(names, values, strict=True))["learning_rate"] == "0.03"


def test_a_training_that_is_stopped_has_its_last_row() -> None:
    def stop(fit: Any) -> None:
        if fit.epoch == 4:
            fit.stop("enough")

    output = io.StringIO()
    fit(Progress(output, every=10), md.callbacks.LambdaCallback(on_epoch_end=stop), epochs=30)
    assert rows_of(output.getvalue()) == [1, 4]
    assert output.getvalue().endswith("stopped: enough\n")


def test_what_verbose_takes() -> None:
    assert for_verbosity(0) == for_verbosity(None) == []
    with pytest.raises(UnknownNameError, match="did you mean 'line'"):
        for_verbosity("lines")
    with pytest.raises(ArgumentError, match='must be "every 1" or more epochs'):
        for_verbosity("every 0")
