"""Workflows that run under mpiexec: order, sub-communicators, tuples, failures, ends."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from magmadnn.comm.launching.wheels import find_starter
from magmadnn.workflow import include
from magmadnn.workflow.description.history import History
from magmadnn.workflow.ranks.plan_folder import open_folder

pytest.importorskip("mpi4py")
ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-m", "magmadnn", "workflow"]
pytestmark = pytest.mark.timeout(120)


def environment() -> dict[str, str]:
    own = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return {**os.environ, **find_starter().environment(), **own}


def call(folder: Path, *arguments: str, seconds: float = 60) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )


def written(folder: Path, toml: str, python: str = "", name: str = "flow.toml") -> Path:
    (folder / name).write_text(textwrap.dedent(toml), encoding="utf-8")
    (folder / "mods.py").write_text(textwrap.dedent(python), encoding="utf-8")
    return folder / name


def history(folder: Path) -> History:
    return History.of(open_folder(folder / "out").records())


def go(folder: Path, *more: str, code: int = 0) -> tuple[History, str]:
    done = call(folder, "run", "flow.toml", "--out", "out", *more)
    assert done.returncode == code, done.stdout + done.stderr
    assert "Warning" not in done.stdout + done.stderr
    return history(folder), done.stdout + done.stderr


def printed(folder: Path, run: str, rank: int = 0) -> str:
    return (folder / "out" / "modules" / run / f"rank-{rank}.log").read_text()


FIRST = """
[[modules]]
name = "simulate"
function = "mods:simulate"
ranks = 2
copies = 2
args = ["--steps", "{copy}"]
[[modules]]
name = "collect"
function = "mods:collect"
after = ["simulate"]
[[modules]]
name = "shell"
command = ["sh", "-c", "echo $0 $MY $MAGMADNN_RANK; pwd; magmadnn-tuple put note file", "{copy}"]
environment = { MY = "own {iteration}" }
[tuple_space]
servers = 2
"""
MODULES = """
import numpy as np
def simulate(ctx):
    total = ctx.comm.allreduce(ctx.rank + 1)
    print("simulate", ctx.copy, ctx.rank, ctx.size, total, *ctx.args)
    ctx.put(f"big/{ctx.copy}", np.full(50_000, ctx.copy + 1.0)) if ctx.rank == 0 else None
    peer = ctx.copy ^ 1
    ctx.send(np.arange(3) + 10 * ctx.copy, "simulate", copy=peer, rank=ctx.rank, tag="t")
    got = ctx.recv("simulate", copy=peer, rank=ctx.rank, tag="t")
    assert got.tolist() == [10 * peer, 10 * peer + 1, 10 * peer + 2], got
def collect(ctx):
    found = dict(ctx.get_any("big/*") for _ in range(2))
    assert [found[f"big/{k}"].sum() for k in range(2)] == [50_000.0, 100_000.0]
    assert ctx.try_get("big/0") is None
    print("collected")
"""


def test_order_communicators_messages_and_tuples(tmp_path: Path) -> None:
    written(tmp_path, FIRST, MODULES)
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    tool = bin_folder / "magmadnn-tuple"
    tool.write_text(
        f"#!{sys.executable}\nfrom magmadnn.workflow.modules.outside import main\nraise SystemExit(main())\n"
    )
    tool.chmod(0o755)
    text = (tmp_path / "flow.toml").read_text().replace("magmadnn-tuple put note file", "true")
    (tmp_path / "flow.toml").write_text(text)
    found, _ = go(tmp_path)
    runs = {run.key: run for run in found.runs.values()}
    assert (
        set(runs) == {"simulate.0", "simulate.1", "collect.0", "shell.0"} and found.finish == "done"
    )
    last = max(runs[f"simulate.{k}"].ended or 0 for k in range(2))
    assert runs["collect.0"].begun >= last
    assert set(runs["simulate.0"].ranks).isdisjoint(runs["simulate.1"].ranks)
    for copy in range(2):
        for rank in range(2):
            told = f"simulate {copy} {rank} 2 3 --steps {copy}\n"
            assert printed(tmp_path, f"simulate.{copy}", rank) == told
    assert printed(tmp_path, "shell.0") == f"0 own 0 0\n{tmp_path}/out/modules/shell.0\n"
    prefix = open_folder(tmp_path / "out").records()[0]["prefix"]
    assert not list(Path("/dev/shm").glob(f"{prefix}*"))


DRIVER = """
import sys
import magmadnn as md
def first(ctx):
    ctx.put("x", {"rank": ctx.rank})
def second(ctx):
    assert ctx.get("x") == {"rank": 0}
w = md.workflow.Workflow("three")
w.add_module(first, "first")
w.add_module(second, "second", after=["first"])
done = w.run(sys.argv[1])
if done:
    print("ended", len(done.history.runs))
"""


@pytest.mark.parametrize("under", [False, True], ids=["starts a job", "under mpiexec"])
def test_three_steps_from_python(tmp_path: Path, under: bool) -> None:
    (tmp_path / "driver.py").write_text(DRIVER)
    front = find_starter().command(4) if under else []
    command = [*front, sys.executable, "driver.py", "out"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0 and "ended 2" in done.stdout, done.stdout + done.stderr


def test_a_child_that_fails_fails_the_step(tmp_path: Path) -> None:
    toml = """
    [[modules]]
    name = "bad"
    command = ["sh", "-c", "echo said; exit 3"]
    [[modules]]
    name = "next"
    command = ["true"]
    after = ["bad"]
    """
    written(tmp_path, toml)
    found, told = go(tmp_path, code=1)
    assert "bad.0 failed: command '" in told and "ended with exit code 3" in told
    assert [run.key for run in found.runs.values()] == ["bad.0"] and found.finish == "failed"
    assert printed(tmp_path, "bad.0") == "said\n"


def test_skip_goes_on_and_retry_tries_again_with_its_tuples(tmp_path: Path) -> None:
    toml = """
    [[modules]]
    name = "put"
    function = "mods:put"
    [[modules]]
    name = "flaky"
    function = "mods:flaky"
    after = ["put"]
    on_failure = "retry"
    retries = 2
    [[modules]]
    name = "bad"
    function = "mods:bad"
    on_failure = "skip"
    [[modules]]
    name = "never"
    command = ["true"]
    after = ["bad"]
    """
    python = """
    def put(ctx):
        ctx.put("x", 7)
    def flaky(ctx):
        assert ctx.get("x") == 7
        if ctx.attempt < 2:
            raise RuntimeError("not yet")
    def bad(ctx):
        raise ValueError("no")
    """
    written(tmp_path, toml, python)
    found, told = go(tmp_path, code=1)
    keys = sorted((run.key, run.good) for run in found.runs.values())
    flaky = [("flaky.0", False), ("flaky.0", False), ("flaky.0", True)]
    assert keys == [("bad.0", False), *flaky, ("put.0", True)]
    assert "ValueError: no (" in told and "mods.py:9" in told


def test_time_limits_end_whole_process_groups(tmp_path: Path) -> None:
    toml = """
    [[modules]]
    name = "child"
    command = ["sh", "-c", "sleep 300 & echo $!; wait"]
    time_limit = 0.5
    on_failure = "skip"
    [[modules]]
    name = "python"
    function = "mods:slow"
    time_limit = 0.5
    on_failure = "skip"
    """
    written(tmp_path, toml, "import time\ndef slow(ctx):\n    time.sleep(100)\n")
    found, _ = go(tmp_path, code=1)
    assert all("took longer than its time limit of 0.5" in r.reason for r in found.runs.values())
    assert found.seconds < 10
    assert gone(int(printed(tmp_path, "child.0").split()[0]))


def gone(process: int) -> bool:
    """Whether a process has ended, within two seconds."""
    for _ in range(100):
        try:
            if Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.02)
    return False


def test_a_deadlock_is_named_with_its_lines(tmp_path: Path) -> None:
    toml = """
    [[modules]]
    name = "a"
    function = "mods:a"
    puts = ["y"]
    [[modules]]
    name = "b"
    function = "mods:b"
    puts = ["x"]
    """
    written(tmp_path, toml, "def a(ctx):\n    ctx.get('x')\ndef b(ctx):\n    ctx.get('y')\n")
    found, told = go(tmp_path, code=1)
    mods = tmp_path / "mods.py"
    words = f"tag 'x' ({mods}:2), which only b puts, which waits for tag 'y' ({mods}:4)"
    assert f"waits for {words}" in told
    assert found.seconds < 2.0


def test_an_exception_on_one_rank_never_hangs_the_others(tmp_path: Path) -> None:
    toml = """
    [[modules]]
    name = "m"
    function = "mods:m"
    ranks = 2
    """
    python = """
    import time
    def m(ctx):
        if ctx.rank == 1:
            time.sleep(0.5)
            raise ValueError("rank one")
        ctx.comm.Barrier()
    """
    written(tmp_path, toml, python)
    started = time.monotonic()
    _, told = go(tmp_path, code=1)
    assert "rank one" in told and "cannot be ended" in told
    assert time.monotonic() - started < 20


KILLED = """
[[modules]]
name = "first"
function = "mods:first"
[[modules]]
name = "second"
function = "mods:second"
after = ["first"]
[[modules]]
name = "child"
command = ["sh", "-c", "test -e ../../../again && exit 1; sleep 300 & echo $!; wait"]
on_failure = "skip"
"""
KILLED_MODULES = """
import os, signal, time
from pathlib import Path
def first(ctx):
    with open("count", "a") as file:
        file.write("x")
def second(ctx):
    if not Path("again").exists():
        Path("pid").write_text(str(os.getpid()))
        time.sleep(60)
"""


def test_a_killed_rank_ends_the_job_and_resume_goes_on(tmp_path: Path) -> None:
    written(tmp_path, KILLED, KILLED_MODULES)
    process = subprocess.Popen(
        [*COMMAND, "run", "flow.toml", "--out", "out"],
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        for _ in range(1500):
            if (tmp_path / "pid").exists() and (tmp_path / "pid").read_text():
                break
            time.sleep(0.02)
        time.sleep(0.2)  # its line is looked at every 50 ms
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
        killed = time.monotonic()
        told, _ = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()
    assert time.monotonic() - killed < 4  # two on a machine with nothing else to do
    assert process.returncode == 1
    assert "(second.0, at " in told and "mods.py:10), process" in told and "was killed" in told, (
        told
    )
    found = history(tmp_path)
    assert all(gone(pid) for pid in found.processes)
    assert gone(int(printed(tmp_path, "child.0").split()[0]))
    (tmp_path / "again").write_text("")
    done = call(tmp_path, "resume", "out")
    assert done.returncode == 1, done.stdout + done.stderr  # the child fails; the rest is done
    after = history(tmp_path)
    assert {r.key for r in after.runs.values() if r.good} == {"first.0", "second.0"}
    assert (tmp_path / "count").read_text() == "x"


def test_resume_names_what_has_changed(tmp_path: Path) -> None:
    written(tmp_path, '[[modules]]\nname = "a"\ncommand = ["true"]\n')
    go(tmp_path)
    text = (tmp_path / "flow.toml").read_text().replace('["true"]', '["false"]')
    (tmp_path / "flow.toml").write_text(text)
    done = call(tmp_path, "resume", "out")
    assert done.returncode == 2
    assert "has changed" in done.stderr
    assert "modules[a].command[0] was 'true' and is 'false'" in done.stderr


C_MODULE = """
#include "magmadnn_workflow.h"
int run(const magmadnn_context *ctx) {
    double x;
    if (ctx->iteration == 0) { double begin = 1.0; ctx->put("x", &begin, 1, MAGMADNN_FLOAT64); }
    if (ctx->get("x", &x, 1, MAGMADNN_FLOAT64, MAGMADNN_WAIT) != 1) return 1;
    double next = 0.5 * (x + 2.0 / x);
    return ctx->put("y", &next, 1, MAGMADNN_FLOAT64);
}
"""
F_MODULE = """
integer(c_int) function run(ctx) bind(c, name="run")
  use, intrinsic :: iso_c_binding
  use magmadnn_workflow
  type(magmadnn_context), intent(in) :: ctx
  real(c_double) :: values(3)
  run = 1
  if (magmadnn_get(ctx, "result", values, magmadnn_wait) /= 3) return
  run = magmadnn_put(ctx, "doubled", 2 * values)
end function run
"""


@pytest.mark.skipif(not shutil.which("gcc") or not shutil.which("gfortran"), reason="no compilers")
def test_a_loop_of_c_and_python_until_it_converges_then_fortran(tmp_path: Path) -> None:
    (tmp_path / "m.c").write_text(C_MODULE)
    (tmp_path / "m.f90").write_text(F_MODULE)
    header = str(include())
    for command in (
        ["gcc", "-Wall", "-Werror", "-shared", "-fPIC", f"-I{header}", "m.c", "-o", "libc.so"],
        [
            "gfortran",
            "-shared",
            "-fPIC",
            f"{header}/magmadnn_workflow.f90",
            "m.f90",
            "-o",
            "libf.so",
        ],
    ):
        subprocess.run(command, cwd=tmp_path, check=True, timeout=60)
    toml = """
    [[modules]]
    name = "newton"
    library = "libc.so"
    [[modules]]
    name = "judge"
    function = "mods:judge"
    [[groups]]
    name = "loop"
    modules = ["newton", "judge"]
    until = "converged"
    iterations = 50
    [[modules]]
    name = "double"
    library = "libf.so"
    after = ["loop"]
    [[modules]]
    name = "last"
    function = "mods:last"
    after = ["double"]
    """
    python = """
    import numpy as np
    def judge(ctx):
        y = ctx.get("y", dtype=float)
        if abs(y[0] ** 2 - 2) < 1e-12:
            ctx.put("converged", True)
            ctx.put("result", np.array([y[0], ctx.iteration, 0.5]))
        else:
            ctx.put("x", y)
    def last(ctx):
        print(*ctx.get("doubled"))
    """
    written(tmp_path, toml, python)
    found, _ = go(tmp_path)
    root, iteration, half = map(float, printed(tmp_path, "last.0").split())
    assert abs(root - 8**0.5) < 1e-12 and half == 1.0
    loops = {r.key.split("/")[0] for r in found.runs.values() if "/" in r.key}
    assert len(loops) == iteration / 2 + 1 < 10


def test_executables_use_the_tuple_space(tmp_path: Path) -> None:
    code = "from magmadnn.workflow.modules.outside import main as m; raise SystemExit(m())"
    tool = f"{sys.executable} -c '{code}'"
    toml = f"""
    [[modules]]
    name = "shell"
    command = ["sh", "-c", "echo 7 | $TOOL put a && $TOOL get b --as json"]
    environment = {{ TOOL = "tool" }}
    [[modules]]
    name = "python"
    command = ["{sys.executable}", "{{base}}/outside.py"]
    """
    (tmp_path / "tool").write_text(f'#!/bin/sh\nexec {tool} "$@"\n')
    (tmp_path / "tool").chmod(0o755)
    outside = """
    import magmadnn as md, numpy as np
    t = md.workflow.connect()
    a = t.get("a")
    t.put("b", np.full(3, a + 0.5))
    assert t.try_get("none") is None
    """
    (tmp_path / "outside.py").write_text(textwrap.dedent(outside))
    written(tmp_path, toml.replace('"tool"', f'"{tmp_path}/tool"'))
    go(tmp_path)
    assert printed(tmp_path, "shell.0") == "[7.5, 7.5, 7.5]\n"


DISTRIBUTED = """
[[modules]]
name = "put"
function = "mods:put"
[[modules]]
name = "get"
function = "mods:get"
after = ["put"]
[tuple_space]
servers = 3
memory = 8_000_000
"""
DISTRIBUTED_MODULES = """
import numpy as np
from magmadnn.errors import WorkflowError
def put(ctx):
    data = np.arange(2_000_003, dtype=np.int64)   # 16 MB, a server holds 8
    try:
        ctx.put("whole", data)
    except WorkflowError as error:
        print("refused:", error)
    ctx.dist_put("spread", data)
def get(ctx):
    data = ctx.dist_get("spread", dtype=np.int64)
    assert np.array_equal(data, np.arange(2_000_003)), data
"""


@pytest.mark.parametrize("way", ["shared", "messages"])
def test_servers_hold_together_what_one_cannot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.setenv("MAGMADNN_TUPLES", way)
    text = DISTRIBUTED if way == "shared" else DISTRIBUTED.replace("whole", "whole")
    modules = DISTRIBUTED_MODULES
    if way == "messages":  # a put has returned by then, so that the run is told by the executive
        modules = modules.replace('ctx.put("whole", data)', 'raise WorkflowError("is full")')
    written(tmp_path, text, modules)
    found, _ = go(tmp_path)
    assert "is full" in printed(tmp_path, "put.0")
    put = [one["bytes_put"] for one in found.statistics]
    assert max(put) < 1.1 * 16_000_024 / 3 and min(put) > 0.9 * 16_000_024 / 3
    assert all(one["held"] == 0 for one in found.statistics)


def test_status_report_and_stop(tmp_path: Path) -> None:
    toml = """
    [[modules]]
    name = "long"
    function = "mods:long"
    [[modules]]
    name = "after"
    command = ["true"]
    after = ["long"]
    """
    python = """
    import time
    from pathlib import Path
    def long(ctx):
        Path("begun").write_text("")
        time.sleep(60)
    """
    written(tmp_path, toml, python)
    process = subprocess.Popen(
        [*COMMAND, "run", "flow.toml", "--out", "out", "--quiet"],
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        for _ in range(1500):
            if (tmp_path / "begun").exists():
                break
            time.sleep(0.02)
        time.sleep(0.1)
        assert "running" in call(tmp_path, "status", "out").stdout
        assert call(tmp_path, "stop", "out", "--now").returncode == 0
        assert process.wait(timeout=20) == 1
    finally:
        process.kill()
        process.wait()
    told = call(tmp_path, "stop", "out")
    assert told.returncode == 0 and "has ended already: failed" in told.stdout
    assert call(tmp_path, "report", "out").returncode == 0
    page = (tmp_path / "out" / "report.html").read_text()
    assert (
        "<svg" in page
        and "long.0" in page
        and "http://" not in page.replace("http://www.w3.org", "")
    )


PINNED = """
[[modules]]
name = "two"
function = "mods:two"
ranks = 2
[[modules]]
name = "wide"
command = ["python3", "cores.py"]
directory = "."
threads = 2
after = ["two"]
[[modules]]
name = "many"
function = "mods:many"
threads = 1000
after = ["wide"]
"""
PINNED_COMMAND = """
import os
print(sorted(os.sched_getaffinity(0)), os.environ["OMP_NUM_THREADS"])
"""
PINNED_MODULES = """
import os
from magmadnn.runtime.threads import thread_count
def two(ctx):
    tasks = [os.sched_getaffinity(int(task)) for task in os.listdir("/proc/self/task")]
    assert all(task == tasks[0] == set(ctx.cores) for task in tasks)
    assert os.environ["OMP_NUM_THREADS"] == os.environ["OPENBLAS_NUM_THREADS"] == "1"
    print("cores", sorted(os.sched_getaffinity(0)), thread_count())
    ctx.comm.Barrier()
def many(ctx):
    assert len(ctx.cores) == 0
    print("cores", sorted(os.sched_getaffinity(0)), thread_count())
"""


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="the system has no affinities")
def test_ranks_have_cores_for_themselves_where_there_are_some(tmp_path: Path) -> None:
    here = sorted(os.sched_getaffinity(0))
    if len(here) < 2:
        pytest.skip("there is one core")
    written(tmp_path, PINNED, PINNED_MODULES)
    (tmp_path / "cores.py").write_text(PINNED_COMMAND)
    go(tmp_path)
    own = sorted(printed(tmp_path, "two.0", rank).strip() for rank in range(2))
    assert own == [f"cores [{here[0]}] 1", f"cores [{here[1]}] 1"]
    assert printed(tmp_path, "wide.0").strip() == f"{here[:2]} 2"
    assert (
        printed(tmp_path, "many.0").strip() == f"cores {here} 1000"
    )  # more than there are: shared
    begun = {r["key"]: r for r in open_folder(tmp_path / "out").records() if r["event"] == "begun"}
    assert sorted(begun["two.0"]["cores"]) == [[here[0]], [here[1]]]
    assert begun["wide.0"]["cores"] == [here[:2]]
    assert "cores" not in begun["many.0"]


# Once a file `full` is there, no process may make a file longer, as on a full disk.
FULL = """
import os, resource, threading, time
def watch():
    while not os.path.exists("full"):
        time.sleep(0.01)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))
def begin():
    threading.Thread(target=watch, daemon=True).start()
begin()
os.register_at_fork(after_in_child=begin)
"""
FILLS = """
import pathlib, time
def fills(ctx):
    pathlib.Path("full").touch()
    time.sleep(0.5)
"""


def test_a_full_disk_under_the_log_ends_the_job(tmp_path: Path) -> None:
    text = '[[modules]]\nname = "a"\nfunction = "mods:fills"\n'
    written(tmp_path, text, FILLS.replace('"full"', repr(str(tmp_path / "full"))))
    (tmp_path / "site").mkdir()
    hook = FULL.replace('"full"', repr(str(tmp_path / "full")))
    (tmp_path / "site" / "sitecustomize.py").write_text(hook)
    paths = os.pathsep.join([str(tmp_path / "site"), str(ROOT)])
    done = subprocess.run(
        [*COMMAND, "run", "flow.toml", "--out", "out"], cwd=tmp_path, capture_output=True, text=True,
        timeout=60, env={**environment(), "PYTHONPATH": paths}, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    assert "cannot write" in done.stderr and "File too large" in done.stderr, done.stderr
    (tmp_path / "full").unlink()
    found = history(tmp_path)
    assert all(gone(pid) for pid in found.processes)
    assert not [r for r in found.runs.values() if r.good]  # what is not in the log does not count
    (tmp_path / "mods.py").write_text("def fills(ctx):\n    pass\n")
    again = call(tmp_path, "resume", "out")
    assert again.returncode == 0, again.stdout + again.stderr
    assert [r.key for r in history(tmp_path).runs.values() if r.good] == ["a.0"]


def test_the_tutorial_runs(tmp_path: Path) -> None:
    """From the command line and from Python: five iterations, to the digits that the page shows."""
    page = (ROOT / "docs" / "tutorial" / "11-a-coupled-workflow.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```(toml|python)\n(.*?)```", page, re.DOTALL)
    for kind, name in (("toml", "coupled.toml"), ("python", "coupled.py")):
        (tmp_path / name).write_text("\n".join(text for k, text in blocks if k == kind))
    done = call(tmp_path, "run", "coupled.toml", "--out", "out")
    assert done.returncode == 0, done.stderr
    shown = re.findall(r"^iteration \d: .*$", page, re.MULTILINE)
    assert len(shown) == 2
    for number, line in enumerate(shown):
        assert printed(tmp_path, f"loop.{number}/learn.0").strip() == line
    alone = subprocess.run(
        [sys.executable, "coupled.py"], cwd=tmp_path, env=environment(), capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip
    assert alone.stdout == "5 iterations\n", alone.stdout + alone.stderr
