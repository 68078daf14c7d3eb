"""Callbacks: early stopping, checkpoints and resuming, CSV, schedules, progress."""

import csv
import io
import os
import signal
import sys
import types

import numpy as np
import pytest

import magmadnn as md
from magmadnn.comm.simulated import simulate
from magmadnn.errors import (
    ArgumentError,
    CheckpointError,
    FileError,
    MissingExtraError,
    UnknownNameError,
)
from magmadnn.optim import StepSlices
from magmadnn.training.callbacks.progress import Progress
from magmadnn.training.loop import fit

RNG = np.random.default_rng(6)
X = RNG.normal(size=(67, 5)).astype(np.float32)
Y = (X[:, 0] > X[:, 1]).astype(np.int64)


def network(**changes):
    return md.Model(
        [
            md.layers.Input((5,)),
            md.layers.Dense(11, activation="relu"),
            md.layers.BatchNorm(),
            md.layers.Dropout(0.2),
            md.layers.Dense(2),
        ],
        **{
            "loss": "cross_entropy",
            "optimizer": md.optim.Adam(0.01),
            "metrics": ["accuracy"],
            **changes,
        },
    )


def values(model):
    return [np.array(p.value.read()) for p in model.variables()]


class StopAt(md.callbacks.Callback):
    def __init__(self, steps):
        self.steps = steps

    def on_batch_end(self, fit):
        if fit.steps == self.steps:
            fit.stop("enough")


class Scripted(md.callbacks.Callback):
    """Puts given values into the history, to drive callbacks that look at it."""

    def __init__(self, *values):
        self.values = list(values)

    def on_epoch_end(self, fit):
        fit.row["scripted_loss"] = self.values[fit.epoch - 1]


@pytest.mark.parametrize("steps", range(1, 29, 4))
def test_resuming_in_mid_epoch_is_bit_identical(tmp_path, steps):
    whole = network()
    expected = whole.fit(X, Y, batch_size=7, epochs=3, verbose=False)
    broken = network()
    first = md.callbacks.Checkpoint(tmp_path, every_steps=1)
    stopped = broken.fit(
        X, Y, batch_size=7, epochs=3, verbose=False, callbacks=[first, StopAt(steps)]
    )
    assert stopped.stopped == "enough"
    resumed = network(seed=0)
    history = resumed.fit(
        X, Y, batch_size=7, epochs=3, verbose=False, callbacks=[md.callbacks.Checkpoint(tmp_path)]
    )
    assert all(np.array_equal(a, b) for a, b in zip(values(whole), values(resumed), strict=True))
    assert history["loss"] == expected["loss"] and history["accuracy"] == expected["accuracy"]


def test_saving_rests_between_short_epochs_and_loses_no_best_one(tmp_path, monkeypatch):
    monkeypatch.setattr("magmadnn.training.callbacks.checkpoints._REST", 1e9)
    saves, kept = [], {}
    checkpoint = md.callbacks.Checkpoint(tmp_path, monitor="scripted_loss", mode="min")
    save = checkpoint.store.save

    def noted(step, state, best=False):
        saves.append((step, best))
        save(step, state, best)

    def keep(fit):
        kept[fit.epoch] = values(fit.model)

    monkeypatch.setattr(checkpoint.store, "save", noted)
    scripted = Scripted(9.0, 8.0, 7.0, 1.0, 5.0, 2.0)
    keeping = md.callbacks.LambdaCallback(on_epoch_end=keep)
    model = network()
    callbacks = [scripted, keeping, checkpoint]
    model.fit(X, Y, batch_size=len(X), epochs=6, verbose=False, callbacks=callbacks)
    assert saves == [(1, True), (4, True), (6, False)]
    best = checkpoint.store.best()
    assert best.record["steps"] == 4 and len(best.record["history"]) == 4
    found = [best.tensors[f"model/{name}"] for name in model.values()]
    assert all(np.array_equal(a, b) for a, b in zip(found, kept[4], strict=True))
    assert checkpoint.store.latest().record["steps"] == 6


def test_stopping_early_saves_the_last_epoch(tmp_path, monkeypatch):
    monkeypatch.setattr("magmadnn.training.callbacks.checkpoints._REST", 1e9)
    checkpoint = md.callbacks.Checkpoint(tmp_path, monitor="scripted_loss", mode="min")
    stop = md.callbacks.EarlyStopping("scripted_loss", mode="min", patience=2)
    callbacks = [Scripted(1.0, *[2.0] * 8), stop, checkpoint]
    history = network().fit(X, Y, epochs=9, verbose=False, callbacks=callbacks)
    assert len(checkpoint.store.latest().record["history"]) == len(history) < 9


def test_a_checkpoint_of_another_model_changes_nothing(tmp_path):
    network().fit(X, Y, epochs=1, verbose=False, callbacks=[md.callbacks.Checkpoint(tmp_path)])
    other = md.Model(
        [md.layers.Input((5,)), md.layers.Dense(2)], loss="cross_entropy", optimizer="adam"
    )
    before = values(other)
    with pytest.raises(CheckpointError, match="is of another training: layer dense_1 is Dense"):
        other.fit(X, Y, epochs=1, verbose=False, callbacks=[md.callbacks.Checkpoint(tmp_path)])
    assert all(np.array_equal(a, b) for a, b in zip(before, values(other), strict=True))


def test_a_signal_saves_and_stops_at_the_next_step(tmp_path):
    def send(fit):
        if fit.steps == 4:
            os.kill(os.getpid(), signal.SIGTERM)

    checkpoint = md.callbacks.Checkpoint(tmp_path)
    stopped = []
    sender = md.callbacks.LambdaCallback(
        on_batch_end=send, on_train_end=lambda fit: stopped.append(fit.stopped)
    )
    with pytest.raises(SystemExit) as ended:
        network().fit(X, Y, batch_size=7, epochs=2, verbose=False, callbacks=[sender, checkpoint])
    assert ended.value.code == 143
    assert checkpoint.interrupted_by == signal.SIGTERM
    assert stopped == ["signal 15"]
    assert checkpoint.is_saved
    assert checkpoint.store.latest().record["steps"] == 4


def test_a_signal_during_the_last_validation_saves_and_is_passed_on(tmp_path):
    checkpoint = md.callbacks.Checkpoint(tmp_path)
    sender = md.callbacks.LambdaCallback(
        on_epoch_end=lambda fit: fit.epoch == 2 and signal.raise_signal(signal.SIGINT)
    )
    with pytest.raises(KeyboardInterrupt):
        network().fit(X, Y, epochs=2, verbose=False, callbacks=[sender, checkpoint])
    assert checkpoint.is_saved
    assert len(checkpoint.store.latest().record["history"]) == 2


def test_a_signal_goes_to_the_handler_that_the_program_has(tmp_path):
    """Which may let it go on, as a batch job does that is told of its end beforehand."""
    seen = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
    try:
        sender = md.callbacks.LambdaCallback(
            on_epoch_begin=lambda fit: signal.raise_signal(signal.SIGTERM)
        )
        callbacks = [sender, md.callbacks.Checkpoint(tmp_path)]
        history = network().fit(X, Y, epochs=2, verbose=False, callbacks=callbacks)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert seen == [signal.SIGTERM]
    assert history.stopped == "signal 15"


def test_an_error_of_training_is_not_hidden_by_a_signal(tmp_path, monkeypatch):
    checkpoint = md.callbacks.Checkpoint(tmp_path)

    def full(*arguments, **options):
        raise FileError("the disk is full")

    monkeypatch.setattr(checkpoint.store, "save", full)
    sender = md.callbacks.LambdaCallback(
        on_epoch_begin=lambda fit: signal.raise_signal(signal.SIGTERM)
    )
    with pytest.raises(FileError, match="full"):
        network().fit(X, Y, epochs=2, verbose=False, callbacks=[sender, checkpoint])
    assert not checkpoint.is_saved


def test_early_stopping_waits_and_gives_the_best_parameters_back():
    kept = {}

    def keep(fit):
        kept[fit.epoch] = values(fit.model)

    model = network()
    history = model.fit(
        X, Y, epochs=9, verbose=False,
        callbacks=[
            Scripted(3.0, 1.0, 2.0, 1.5, 1.2, 0.5, 0.4, 0.3, 0.2),
            md.callbacks.LambdaCallback(on_epoch_end=keep),
            md.callbacks.EarlyStopping("scripted_loss", mode="min", patience=2, restore_best=True),
        ],
    )  # fmt: skip
    assert len(history) == 5
    assert history.stopped == "scripted_loss has not improved for 3 epochs; its best is 1"
    assert all(np.array_equal(a, b) for a, b in zip(kept[2], values(model), strict=True))


def test_early_stopping_says_which_epoch_was_the_best():
    stopping = md.callbacks.EarlyStopping("scripted_loss", mode="min", patience=9, min_delta=0.2)
    assert stopping.best_epoch is None
    losses = (3.0, 1.0, 0.9, 0.7, 0.6)  # 0.9 and 0.6 are not better by 0.2
    network().fit(X, Y, epochs=5, verbose=False, callbacks=[Scripted(*losses), stopping])
    assert stopping.best_epoch == 4


def test_early_stopping_with_restore_best_survives_a_resume(tmp_path):
    def callbacks(*more):
        return [
            Scripted(1.0, 2.0, 3.0, 4.0, 5.0),
            md.callbacks.EarlyStopping("scripted_loss", mode="min", patience=3, restore_best=True),
            md.callbacks.Checkpoint(tmp_path, monitor="loss"),
            *more,
        ]

    whole = network()
    plain = callbacks()[:2]
    whole.fit(X, Y, batch_size=9, epochs=5, verbose=False, callbacks=plain)
    network().fit(X, Y, batch_size=9, epochs=5, verbose=False, callbacks=callbacks(StopAt(20)))
    resumed, rest = network(), callbacks()
    resumed.fit(X, Y, batch_size=9, epochs=5, verbose=False, callbacks=rest)
    assert all(np.array_equal(a, b) for a, b in zip(values(whole), values(resumed), strict=True))
    assert rest[1].best_epoch == 1


def test_rising_values_are_better_for_accuracy():
    class Accuracy(Scripted):
        def on_epoch_end(self, fit):
            fit.row["accuracy"] = self.values[fit.epoch - 1]

    history = network().fit(
        X, Y, epochs=6, verbose=False,
        callbacks=[
            Accuracy(0.1, 0.2, 0.3, 0.2, 0.2, 0.2),
            md.callbacks.EarlyStopping("accuracy", patience=1),
        ],
    )  # fmt: skip
    assert len(history) == 5


def test_csv_logger_and_history_files_keep_all_digits(tmp_path):
    history = network().fit(
        X, Y, epochs=3, verbose=False, callbacks=[md.callbacks.CSVLogger(tmp_path / "log.csv")]
    )
    history.to_csv(tmp_path / "history.csv")
    for name in ("log.csv", "history.csv"):
        with (tmp_path / name).open() as file:
            rows = list(csv.DictReader(file))
        assert [float(r["loss"]) for r in rows] == history["loss"]


def test_schedule_sets_the_learning_rate_and_history_tells_it():
    halving = md.callbacks.Schedule(lambda epoch: 0.1 / 2**epoch)
    history = network().fit(X, Y, epochs=3, verbose=False, callbacks=[halving])
    assert history["learning_rate"] == [0.1, 0.05, 0.025]


def test_progress_in_a_log_has_a_line_for_each_epoch_and_no_control_characters():
    output = io.StringIO()
    network().fit(X, Y, epochs=2, verbose=False, callbacks=[Progress(output)])
    lines = output.getvalue().splitlines()
    assert len(lines) == 3
    assert lines[0].split()[:3] == ["epoch", "loss", "accuracy"]
    assert "\r" not in output.getvalue() and "\x1b" not in output.getvalue()


def test_history_plot_draws_a_panel_for_each_measure(tmp_path):
    history = network().fit(X, Y, validation_split=0.2, epochs=2, verbose=False)
    figure = history.plot(tmp_path / "curves.png")
    assert [axes.get_title() for axes in figure.axes] == ["loss", "accuracy"]
    assert [len(axes.lines) for axes in figure.axes] == [2, 2]
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("act", "error", "text"),
    [
        (lambda: md.callbacks.EarlyStopping(patience=-1), ArgumentError, "patience must be an integer"),
        (lambda: md.callbacks.EarlyStopping(mode="mix"), UnknownNameError, "did you mean 'min'"),
        (lambda: md.callbacks.Schedule("learning_rate", float), ArgumentError, "must be a function of the"),
        (lambda: md.callbacks.Checkpoint("x", every_steps=0), ArgumentError, "every_steps must be above 0"),
        (lambda: md.callbacks.LambdaCallback(on_epoch=print), UnknownNameError, "on_epoch_end"),
        (lambda: network().fit(X, Y, verbose=False, callbacks=[md.callbacks.EarlyStopping("val_los")]),
         UnknownNameError, "monitor 'val_los'"),
    ],
)  # fmt: skip
def test_mistakes_are_named(act, error, text):
    with pytest.raises(error, match=text):
        act()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"batch_size": 9}, "batch_size is 9, in the checkpoint 7"),
        ({"seed": 1}, "seed is 1, in the checkpoint 0"),
    ],
)
def test_a_resume_with_another_order_of_batches_is_refused(tmp_path, change, text):
    steps = [md.callbacks.Checkpoint(tmp_path, every_steps=1), StopAt(3)]
    network().fit(X, Y, batch_size=7, epochs=1, verbose=False, callbacks=steps)
    other = network(seed=change.get("seed", 0))
    with pytest.raises(CheckpointError, match=text):
        other.fit(
            X, Y, batch_size=change.get("batch_size", 7), epochs=1, verbose=False,
            callbacks=[md.callbacks.Checkpoint(tmp_path)],
        )  # fmt: skip


def test_tensorboard_writes_each_column_of_each_epoch(tmp_path, monkeypatch):
    written, closed = [], []

    class Writer:
        def __init__(self, folder):
            assert folder == str(tmp_path)

        def add_scalar(self, name, value, epoch):
            written.append((name, value, epoch))

        def close(self):
            closed.append(len(written))

    module = types.ModuleType("tensorboardX")
    module.SummaryWriter = Writer
    monkeypatch.setitem(sys.modules, "tensorboardX", module)
    board = md.callbacks.TensorBoard(tmp_path)
    history = network().fit(X, Y, epochs=2, verbose=False, callbacks=[board])
    expected = [(k, v, n + 1) for n, row in enumerate(history) for k, v in row.items()]
    assert written == expected and closed == [len(written)]


def test_tensorboard_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(MissingExtraError, match=r'pip install "magmadnn\[tensorboard\]"'):
        md.callbacks.TensorBoard(tmp_path)


def test_callbacks_have_their_turn_ten_times_a_second(monkeypatch):
    clock, ends, rng = [0.0], [], np.random.default_rng(8)

    def run(slices, order, count, follows):  # steps of 3 ms, slices up to a fifth slower or faster
        clock[0] += 0.003 * count * rng.uniform(0.8, 1.2)
        return original(slices, order, count, follows)

    original = StepSlices.run
    monkeypatch.setattr(StepSlices, "run", run)
    monkeypatch.setattr(fit.time, "perf_counter", lambda: clock[0])

    class Watch(md.callbacks.Callback):
        def batches(self, fit):
            return None

        def on_batch_end(self, fit):
            ends.append(clock[0])

    rows = np.resize(X, (4000, 5))
    network().fit(rows, np.resize(Y, 4000), batch_size=8, verbose=False, callbacks=[Watch()])
    gaps = np.diff(ends[2:-1])  # the first slices are short, and the last is what is left
    assert len(gaps) > 10 and gaps.max() <= 0.13 and np.mean(gaps) < 0.09


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_callback_s_own_fields_may_have_names_of_what_training_asks_it(ranks):
    class Own(md.callbacks.Callback):
        is_everywhere = True

        def __init__(self):
            self.interrupted_by, self.hear, self.elsewhere = None, 3, "there"
            self.epochs = 0

        def on_epoch_end(self, fit):
            self.epochs += 1

    def run(comm):
        own, ways = Own(), md.parallel.DataParallel(comm)
        fit = {"epochs": 2, "batch_size": 32, "verbose": False, "callbacks": [own]}
        network().fit(X[:64], Y[:64], parallel=ways, **fit)
        return own.interrupted_by, own.hear, own.elsewhere, own.epochs

    assert simulate(ranks, run) == [(None, 3, "there", 2)] * ranks
