"""Workers use what the client means of modules of one name, or say why they cannot."""

from __future__ import annotations

import importlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.comm import simulate
from magmadnn.comm.launching.importing import importing
from magmadnn.comm.launching.launcher import run_job
from magmadnn.errors import ArgumentError, DataError
from magmadnn.graph.op import REGISTRY
from magmadnn.graph.operators import FUNCTIONS
from magmadnn.training.model.plain import elsewhere, own_modules
from magmadnn.workers.handlers import find_handler
from tests.parallel import own_items

ROOT = Path(__file__).resolve().parents[2]
DRAW = np.random.default_rng(6)
X = DRAW.normal(size=(24, 4)).astype(np.float32)
Y = DRAW.integers(0, 2, 24)

MINE = """
import functools
import magmadnn as md

def scaled(function):
    @functools.wraps(function)
    def half(*given):
        return 0.5 * function(*given)
    return half

def base(scores, targets):
    return md.losses.cross_entropy(scores, targets)

half = scaled(base)

def act(x):
    return 2.0 * x
"""
FILES = {
    "a/m1_mine.py": MINE,
    "a/m1_namesake.py": "def act(x):\n    return -1.0 * x\n",
    "a/m1_formula.py": (
        "from magmadnn.graph import scalar\n\ndef wavy(x):\n    return x + scalar.sin(x)\n"
    ),
    "a/m1_ops.py": (
        "import magmadnn as md\nimport m1_formula\nfrom magmadnn.graph import scalar\n"
        "made = {'vjp': lambda g, y, x: g * (1 + md.ops.cos(x))}\n"
        "wavy = md.ops.pointwise('m1_wavy', 'x + sin(x)', m1_formula.wavy, **made)\n"
        "sine = md.ops.pointwise('m1_sine', 'sin(x)', scalar.sin, vjp=lambda g, y, x: g * md.ops.cos(x))\n"
        "def later(name):\n    return md.ops.pointwise(name, 'x + sin(x)', m1_formula.wavy, **made)\n"
    ),
    "a/m1_starts.py": (
        "import magmadnn as md\nmd.workers(0).close()\n\ndef act(x):\n    return 2.0 * x\n"
    ),
    "b/m1_mine.py": MINE.replace("2.0 * x", "-7.0 * x"),
    "c/m1_mine.py": MINE.replace("2.0 * x", "5.0 * x"),
}


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A client in folder b whose script lies in a; both have modules of the same names."""
    pytest.importorskip("mpi4py")
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")  # files are changed within one second
    monkeypatch.chdir(tmp_path / "b")
    monkeypatch.syspath_prepend(str(tmp_path / "a"))
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("m1_")]:
        del sys.modules[name]
    for name in [name for name in REGISTRY if name.startswith("m1_")]:
        del REGISTRY[name], FUNCTIONS[name]


def network(*acts: Any, loss: Any = "cross_entropy") -> md.Model:
    layers: list[Any] = [md.layers.Input((4,))]
    for act in acts:
        layers += [md.layers.Lambda(act), md.layers.Dense(3)]
    return md.Model([*layers, md.layers.Dense(2)], loss=loss, optimizer=md.optim.SGD(0.1), seed=1)


def fit(model: md.Model) -> dict[str, Any]:
    model.fit(X, Y, batch_size=8, verbose=False)
    return model.values()


def test_workers_use_what_the_client_means(folder: Path) -> None:
    mine = importlib.import_module("m1_mine")
    namesake = importlib.import_module("m1_namesake")
    ops = importlib.import_module("m1_ops")
    starts = importlib.import_module("m1_starts")
    for_script = ops.later("m1_later")  # no module does that when it is imported
    models = [
        lambda: network(mine.act, loss=mine.base),
        lambda: network(ops.wavy),
        lambda: network(ops.sine),
    ]
    alone = [fit(model()) for model in models]
    with md.workers(1):
        for model, expected in zip(models, alone, strict=True):  # the file in a, not that in b
            for name, value in fit(model()).items():
                np.testing.assert_allclose(value, expected[name], rtol=1e-5, atol=1e-6)
        with pytest.raises(ArgumentError, match=r"needs base, and base of m1_mine is something"):
            fit(network(loss=mine.half))
        with pytest.raises(ArgumentError, match=r"act of m1_mine and act of m1_namesake.*rename"):
            fit(network(mine.act, namesake.act))
        with pytest.raises(ArgumentError, match=r"needs m1_later.*put it at the top"):
            fit(network(for_script))
        with pytest.raises(
            ArgumentError, match=r"module m1_starts starts workers.*if __name__ == \"__main__\""
        ) as found:
            fit(network(starts.act))
        assert "beside the script" not in str(found.value)  # which would not help
        fit(network(mine.act))


def test_workers_refuse_a_module_that_has_changed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = importlib.import_module("m1_mine")
    file = folder / "a/m1_mine.py"
    with md.workers(1) as workers:
        fit(network(mine.act))
        file.write_text(MINE.replace("2.0 * x", "9.0 * x"))
        fit(network(mine.act))  # both have the older one
        before = mine.act
        importlib.reload(mine)
        with pytest.raises(ArgumentError, match=r"needs act, and act of m1_mine is something else"):
            fit(network(before))
        with pytest.raises(
            ArgumentError, match=r"m1_mine has changed since workers imported it: call workers\.r"
        ):
            fit(network(mine.act))
        workers.restart()
        found = fit(network(mine.act))
        file.write_text(MINE)
        workers.restart()
        with pytest.raises(ArgumentError, match=r"m1_mine has changed since the client imported"):
            fit(network(mine.act))
        del sys.modules["m1_mine"]
        monkeypatch.syspath_prepend(str(folder / "c"))
        mine = importlib.import_module("m1_mine")
        with pytest.raises(
            ArgumentError,
            match=r"m1_mine is another file here \(.*/a/m1_mine\.py\) than the client's \(.*/c/m1_m",
        ):
            fit(network(mine.act))
    file.write_text(MINE.replace("2.0 * x", "9.0 * x"))
    monkeypatch.syspath_prepend(str(folder / "a"))
    del sys.modules["m1_mine"]
    for name, value in fit(network(importlib.import_module("m1_mine").act)).items():
        np.testing.assert_allclose(value, found[name], rtol=1e-5, atol=1e-6)


def test_paths_of_a_client_come_first_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", ["/y", "", Path("/no text"), "/z"])
    record = elsewhere.record_of([network])
    assert record["path"] == ["/y", str(Path.cwd()), "/z"]
    as_before = list(sys.path)
    elsewhere.imported({"path": record["path"], "places": []})
    assert sys.path == as_before  # of the client itself
    monkeypatch.setattr(sys, "path", ["/here", "/z", "/y"])
    elsewhere.imported({"path": record["path"], "places": []})
    assert sys.path == [*record["path"], "/here"]


class Times:
    """What has a method, which may be that of the class or of an object."""

    def by_object(self, x: Any) -> Any:
        return 2.0 * x

    @classmethod
    def by_class(cls, x: Any) -> Any:
        return 2.0 * x


def test_methods_of_classes_are_found_and_those_of_objects_are_not() -> None:
    (place,) = elsewhere.record_of([Times.by_class])["places"]
    assert (place["name"], place["within"]) == ("by_class", "Times.by_class")
    assert elsewhere.imported(elsewhere.record_of([Times.by_class])) == [Times.by_class]
    with pytest.raises(ArgumentError, match=r"Times\.by_object of .* is something else.*method of"):
        elsewhere.record_of([Times().by_object])
    with pytest.raises(ArgumentError, match=r"needs sum, .*ndarray\.sum of no module"):
        elsewhere.record_of([np.ndarray.sum])


def test_no_processes_are_started_while_a_worker_imports_a_module() -> None:
    with importing("mine"):
        for start in (md.workers, lambda: run_job(2, ["-c", "pass"])):
            with pytest.raises(ArgumentError, match=r"module mine starts workers when it is impor"):
                start()
    with md.workers(0):  # after it they are
        pass


def test_modules_of_handlers_start_none_either(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "m1_handles.py").write_text(FILES["a/m1_starts.py"])
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(
        ArgumentError, match=r"module m1_handles starts workers when it is imported"
    ):
        find_handler("m1.none", "m1_handles")


def test_an_op_that_its_module_does_not_define_is_refused_in_words_for_workers() -> None:
    (place,) = elsewhere.record_of([own_items.bent])["places"]
    assert (place["module"], place["within"]) == (own_items.__name__, None)
    with pytest.raises(
        ArgumentError, match=r"needs the op m1_none, .* by importing tests\.parallel"
    ):
        elsewhere.imported({"places": [{**place, "name": "m1_none"}], "path": []})


# --- modules that are imported by those of the model's items ---------------------------------------


def _package(folder: Path, factor: float) -> None:
    """A module whose function calls one of another, which takes a number from a third."""
    for name, text in {
        "m1_package/__init__.py": "",
        "m1_package/formulas.py": "from . import numbers as _n\nimport json, numpy\n\n"
        "def times(x):\n    return _n.FACTOR * x\n",
        "m1_package/numbers.py": f"FACTOR = {factor}\n",
        "m1_late.py": "SHIFT = 0.5\n",
        "m1_outer.py": "import m1_package.formulas as f\n\ndef act(x):\n    import m1_late\n"
        "    return f.times(x) + m1_late.SHIFT\n",
    }.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)


def test_modules_that_a_module_imports_are_compared_too(folder: Path) -> None:
    _package(folder / "a", 2.0)
    outer = importlib.import_module("m1_outer")
    with md.workers(1) as workers:
        fit(network(outer.act))
        (place,) = elsewhere.record_of([outer.act])["places"]
        assert place["needs"].keys() == {
            "m1_package", "m1_package.formulas", "m1_package.numbers", "m1_late",
        }  # fmt: skip
        numbers = folder / "a/m1_package/numbers.py"
        numbers.write_text("FACTOR = -3.0\n")
        workers.restart()
        with pytest.raises(
            ArgumentError,
            match=r"needs act, and module m1_package\.numbers, which m1_outer imports, has changed since "
            r"the client imported it: importlib.reload it",
        ):
            fit(network(outer.act))
        numbers.write_text("FACTOR = 2.0\n")
        (folder / "a/m1_late.py").write_text("SHIFT = 0.75\n")  # which its function imports
        workers.restart()
        with pytest.raises(
            ArgumentError, match=r"module m1_late, which m1_outer imports, has chan"
        ):
            fit(network(outer.act))


def test_what_is_installed_or_pythons_own_is_not_compared() -> None:
    found = own_modules.needed("tests.parallel.own_items")
    assert not {name for name in found if name.split(".")[0] != "tests"}
    assert own_modules.needed("json.decoder").keys() <= set()
    assert own_modules.code_of(network()) == {}
    assert own_modules.code_of(own_items.network()).keys() == {f"module {own_items.__name__}"}


def test_ranks_with_other_versions_of_what_a_layer_imports_are_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on machines that do not see the same files."""
    _package(folder / "a", 2.0)
    outer, digest = importlib.import_module("m1_outer"), own_modules.digest

    def of_rank(name: str) -> str | None:
        other = name == "m1_package.numbers" and ranks.get(threading.get_ident())
        return "another" if other else digest(name)

    ranks: dict[int, int] = {}
    monkeypatch.setattr(own_modules, "digest", of_rank)

    def run(comm: Any) -> None:
        ranks[threading.get_ident()] = comm.rank
        model = network(outer.act)
        model.fit(X, Y, batch_size=8, verbose=False, parallel=md.parallel.DataParallel(comm))

    with pytest.raises(
        DataError,
        match=r"ranks differ in module m1_package\.numbers: rank 0 has .*, rank 1 has another",
    ):
        simulate(2, run)


def test_what_one_rank_alone_imports_is_not_compared(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As to plot on rank 0: fit said that ranks differ in a module that one had and the other had not."""
    _package(folder / "a", 2.0)
    outer, found = importlib.import_module("m1_outer"), own_modules.code_of

    def of_rank(model: md.Model) -> dict[str, str]:
        code = found(model)
        return code | {"module m1_drawn": "some"} if ranks[threading.get_ident()] == 0 else code

    ranks: dict[int, int] = {}
    monkeypatch.setattr(own_modules, "code_of", of_rank)

    def run(comm: Any) -> dict[str, Any]:
        ranks[threading.get_ident()] = comm.rank
        model = network(outer.act)
        model.fit(X, Y, batch_size=8, verbose=False, parallel=md.parallel.DataParallel(comm))
        return model.values()

    assert len(simulate(2, run)) == 2


def test_what_the_client_alone_finds_is_not_asked_of_workers(folder: Path) -> None:
    _package(folder / "a", 2.0)
    (place,) = elsewhere.record_of([importlib.import_module("m1_outer").act])["places"]
    place["needs"] |= {"m1_elsewhere": ("/client/m1_elsewhere.py", "some")}
    (act,) = elsewhere.imported({"path": [], "places": [place]})
    assert act(1.0) == 2.5


SCRIPT = """
import sys
import numpy as np
import magmadnn as md
rank = md.comm.world().rank
sys.path.insert(0, f"v{rank}")
from m1_factor import times

class Times(md.layers.Layer):
    def forward(self, x):
        return times(x)

x = np.ones((8, 2), np.float32)
model = md.Model([md.layers.Input((2,)), Times(), md.layers.Dense(1)], loss="mse", optimizer="sgd")
model.fit(x, x[:, :1], verbose=False, parallel=md.parallel.DataParallel(shards=2))
"""


def test_ranks_compare_what_a_launched_script_imports(folder: Path) -> None:
    """A script that `magmadnn launch` runs has no loader, and the name of its file no folder."""
    for rank in (0, 1):
        (folder / f"b/v{rank}").mkdir()
        (folder / f"b/v{rank}/m1_factor.py").write_text(
            f"def times(x):\n    return {rank + 2.0} * x\n"
        )
    (folder / "b/m1_script.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "magmadnn", "launch", "-n", "2", "m1_script.py"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert "ranks differ in module m1_factor: rank 0 has" in done.stderr, done.stderr
    assert "give all ranks the same files" in done.stderr


class _Around(md.layers.Layer):
    inner: md.layers.Layer

    def forward(self, x: Any) -> Any:
        return self.inner(x) * 1.0


def test_layers_in_layers_are_looked_at_once() -> None:
    """They were looked at as settings and as parts, 2^16 times the innermost."""
    layer: md.layers.Layer = md.layers.Dense(2)
    for _ in range(16):
        layer = _Around(layer)
    model = md.Model([md.layers.Input((2,)), layer], loss="mse", optimizer="sgd")
    assert len(list(own_modules._items(model.layers))) < 100
