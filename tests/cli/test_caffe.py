"""Networks that a file describes for Caffe, trained from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import magmadnn as md
from tests.models.caffe import descriptions as of

NETWORK = (
    'name: "Small" input: "data" input_dim: 1 input_dim: 1 input_dim: 5 input_dim: 7\n'
    + of.conv("c", "data", 3, 3)
    + of.in_place("r", "ReLU", "c")
    + of.pool("p", "c", "MAX", 2, 2)
    + of.dense("ip", "p", 4)
    + of.layer("prob", "Softmax", "ip")
)
SHORT = ("--epochs", 2, "--batch-size", 16)


@pytest.fixture
def small(tmp_path) -> Path:
    """A description for the images, which ends with a Softmax."""
    (tmp_path / "networks").mkdir()
    file = tmp_path / "networks" / "small.prototxt"
    file.write_text(NETWORK, encoding="utf-8")
    return file


def test_a_file_is_trained_as_a_network_with_a_name(command, images, small, tmp_path) -> None:
    done = command("train", "networks/small.prototxt", "--data", images, *SHORT)
    assert (done.code, done.err) == (0, "")
    assert f"{small}, preset image, seed 0" in done.out
    (run,) = (tmp_path / "runs").iterdir()
    assert run.name.endswith("-small")
    assert json.loads((run / "run.json").read_text())["arguments"]["model"] == str(small)
    again = md.load(run)
    # The loss takes what goes into the softmax; classes are told from that.
    assert [layer.name for layer in again.layers if layer.name] == ["c", "r", "p", "ip"]
    assert again.loss == "cross_entropy" or again.loss.name == "cross_entropy"
    result = json.loads((run / "result.json").read_text())
    assert result["parameters"] == 9 * 3 + 3 + 2 * 3 * 3 * 4 + 4
    done = command("predict", run, "--data", images, "--out", "p.csv")
    assert done.code == 0, done.err


def test_a_run_goes_on_from_another_folder(
    command, images, small, tmp_path, interrupt, goes_on, monkeypatch
) -> None:
    interrupt(3)
    done = command("train", "networks/small.prototxt", "--data", images, *SHORT, "--out", "run")
    assert done.code == 130
    goes_on()
    monkeypatch.chdir(small.parent)
    done = command("train", "other.prototxt", "--resume", tmp_path / "run")
    assert (done.code, "contradicts" in done.err) == (2, True)
    done = command("train", "small.prototxt", "--resume", tmp_path / "run")
    assert (done.code, done.err) == (0, "")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (NETWORK.replace("num_output: 4", "num_output: 5"), "the data needs [batch, 4]: set num_output"),
        (NETWORK + of.dense("side", "p", 4), "the network has 2 outputs, and the command trains networks"),
        (NETWORK.replace("Pooling", "Poling"), "type 'Poling' is not known: did you mean 'Pooling'?"),
        ("name: 'x", "line 1: the quotation mark ' is not closed in its line"),
        (None, "none.prototxt"),
    ],
)  # fmt: skip
def test_files_that_cannot_be_trained(command, images, small, tmp_path, text, words) -> None:
    if text is not None:
        small.write_text(text, encoding="utf-8")
    done = command("train", small if text else "none.prototxt", "--data", images, *SHORT)
    assert (done.code, done.out.count("epoch")) == (2, 0)
    assert words in done.err and done.err.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_options_of_layers_are_refused(command, images, small) -> None:
    done = command("train", small, "--data", images, "--hidden", "7")
    assert done.code == 2 and "--hidden: the layers of" in done.err


def test_a_search_over_a_file(command, images, small, tmp_path, monkeypatch) -> None:
    (tmp_path / "space.toml").write_text("lr = {choice = [0.03, 0.01]}\n")
    done = command(
        *("search", "networks/small.prototxt", "--data", images, "--space", "space.toml"),
        *("--method", "grid", *SHORT, "--out", "study", "--objective", "loss"),
    )
    assert (done.code, done.err) == (0, "")
    monkeypatch.chdir(small.parent)
    record = json.loads((tmp_path / "study" / "run.json").read_text())["arguments"]
    assert record["given"]["model"] == str(small)
    assert md.load(tmp_path / "study" / "model").predict(np.zeros((1, 5, 7, 1), np.float32)).size
