"""Every system call of every save is made to fail, or to be the last one before a crash.

Three models of what goes wrong:

- stop: the process ends at a call (kill -9); what the calls before did is all there;
- fault: a call reports an error, once or from then on, with or without having done its work;
- power loss: files keep what was synced and any torn part of the rest; folders keep what was synced
  and any beginning of the changes after it, each folder by itself.

After each of them the old or the new state must load, and saving again must work and leave no waste.
"""

from __future__ import annotations

import errno
import functools
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from magmadnn.errors import FileError
from magmadnn.storage import leftovers
from magmadnn.storage.checkpoint import CheckpointStore, State
from magmadnn.storage.disk import Calls, calls
from magmadnn.storage.durable import (
    Content,
    clean_leftovers,
    folder_names,
    read_folder,
    remove_folder,
    write_file,
    write_folder,
)
from magmadnn.storage.run_folder import create_run, read_run

METHODS = [name for name in vars(Calls) if not name.startswith("_")]


class Stop(BaseException):
    """The process has ended: no call after this one is made."""


Handler = Callable[[str, Callable[..., Any], tuple[Any, ...]], Any]


@contextmanager
def intercepted(handler: Handler) -> Iterator[None]:
    def bind(name: str) -> Callable[..., Any]:
        real = getattr(Calls, name).__get__(calls)
        return lambda *arguments: handler(name, real, arguments)

    before = dict(vars(calls))
    vars(calls).update({name: bind(name) for name in METHODS})
    try:
        yield
    finally:
        vars(calls).clear()
        vars(calls).update(before)


def make(name: str, real: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """The call itself; really syncing would only cost time, since the machine does not crash."""
    return None if name in ("sync", "sync_folder") else real(*arguments)


@dataclass
class Trouble:
    """Makes call number `at` go wrong in the way `how`."""

    at: int
    how: str
    error: int = 0
    make: Handler = make
    seen: int = 0

    def __call__(self, name: str, real: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        self.seen += 1
        if self.seen <= self.at:
            return self.make(name, real, arguments)
        if name == "close":  # whatever happens, the test keeps no file open
            real(*arguments)
        if self.seen == self.at + 1:
            self._half(name, real, arguments)
        if self.how.startswith("stop"):
            raise Stop
        if self.seen == self.at + 1 or self.how == "dead disk":
            raise OSError(self.error, "injected")
        return None if name == "close" else self.make(name, real, arguments)

    def _half(self, name: str, real: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        if name == "close" or not self.how.endswith("done"):
            return
        if name == "write":  # torn
            descriptor, data = arguments
            real(descriptor, data[: len(data) // 2])
        else:
            self.make(name, real, arguments)


# --- what is saved, and how it is read back ------------------------------------------------------


@dataclass(frozen=True)
class Scenario:
    prepare: Callable[[Path], object]
    act: Callable[[Path], object]
    read: Callable[[Path], object]
    again: Callable[[Path], object] | None = None  # what a later process does, if not `act`
    cleans: bool = True  # whether that removes all waste


def nothing(folder: Path) -> None:
    pass


def state(step: int, tag: str = "") -> State:
    values = np.arange(7, dtype=np.float32) + step
    return State({"w": values, "n": np.array(step)}, {"step": step, "tag": tag})


def save(step: int, best: bool = False, tag: str = "") -> Callable[[Path], None]:
    def act(folder: Path) -> None:
        CheckpointStore(folder / "run", note=lambda note: None).save(step, state(step, tag), best)

    return act


def prepare_store(folder: Path) -> None:
    (folder / "run").mkdir()
    for step in (3, 5, 11):
        save(step, best=step == 3)(folder)


def read_store(folder: Path) -> object:
    def refuse(note: str) -> None:
        raise AssertionError(f"nothing should be passed over: {note}")

    found = []
    store = CheckpointStore(folder / "run", note=refuse)
    for one in (store.latest(), store.best()):
        if one is not None:
            expected = state(one.record["step"]).tensors
            assert all(np.array_equal(one.tensors[name], expected[name]) for name in expected)
        found.append(one and (one.record["step"], one.record["tag"]))
    return tuple(found)


def read_file_or_none(folder: Path) -> bytes | None:
    path = folder / "file"
    return path.read_bytes() if path.exists() else None


def read_box(folder: Path) -> object:
    if "box" not in folder_names(folder):
        return None
    return read_folder(folder / "box")


def read_box_or_empty(folder: Path) -> object:
    box = folder / "box"
    return None if box.exists() and not list(box.iterdir()) else read_box(folder)


def write_deep(folder: Path) -> None:
    write_folder(folder / "deep" / "er" / "box", NEW, replace=True)


def read_deep(folder: Path) -> object:
    return read_box(folder / "deep" / "er") if (folder / "deep" / "er").exists() else None


def start_run(folder: Path) -> None:
    create_run(folder / "runs" / "a", {"lr": 0.1})


def start_run_if_missing(folder: Path) -> None:
    if not (folder / "runs" / "a" / "run.json").exists():
        start_run(folder)


def read_run_or_none(folder: Path) -> object:
    path = folder / "runs" / "a"
    return read_run(path) if (path / "run.json").exists() else None


def remove_box(folder: Path) -> None:
    if "box" in folder_names(folder):
        remove_folder(folder / "box")


OLD: dict[str, Content] = {"a.bin": b"old " * 50, "b.bin": b"OLD"}
NEW: dict[str, Content] = {"a.bin": b"new and longer " * 40, "c.bin": lambda: [b"NE", b"", b"W"]}


def replace_box(folder: Path) -> None:
    write_folder(folder / "box", NEW, replace=True)


def leave_wreck(folder: Path) -> None:
    """What is left by two writers: one died between its two renames, one while writing."""
    write_folder(folder / "box", OLD)
    with intercepted(Trouble(last_rename(replace_box, folder), "stop")), suppress(Stop):
        replace_box(folder)
    assert not (folder / "box").exists()


def last_rename(act: Callable[[Path], object], folder: Path) -> int:
    """The number of the call that gives the new folder its name."""
    names: list[str] = []
    spare = folder / "spare"
    spare.mkdir()
    write_folder(spare / "box", OLD)
    with intercepted(lambda name, real, a: (names.append(name), make(name, real, a))[1]):
        act(spare)
    shutil.rmtree(spare)
    return [i for i, name in enumerate(names) if name == "rename"][1]


def write_old_box(folder: Path) -> None:
    write_folder(folder / "box", OLD)


def write_new_file(folder: Path) -> None:
    write_file(folder / "file", b"new" * 99)


SCENARIOS = {
    "file, new": Scenario(nothing, write_new_file, read_file_or_none),
    "file, replaced": Scenario(
        lambda folder: write_file(folder / "file", b"old" * 7), write_new_file, read_file_or_none
    ),
    "folder, new": Scenario(nothing, replace_box, read_box),
    "folder, deep": Scenario(nothing, write_deep, read_deep),
    "folder, empty one taken": Scenario(
        lambda folder: (folder / "box").mkdir(), replace_box, read_box_or_empty
    ),
    "folder, replaced": Scenario(write_old_box, replace_box, read_box),
    "folder, wreck replaced": Scenario(leave_wreck, replace_box, read_box),
    "folder, removed": Scenario(write_old_box, remove_box, read_box, cleans=False),
    "run": Scenario(nothing, start_run, read_run_or_none, start_run_if_missing, cleans=False),
    "run, in an empty folder": Scenario(
        lambda folder: (folder / "runs" / "a").mkdir(parents=True),
        start_run,
        read_run_or_none,
        start_run_if_missing,
    ),
    "store, first": Scenario(lambda folder: (folder / "run").mkdir(), save(2), read_store),
    "store, next": Scenario(prepare_store, save(13), read_store),
    "store, same again": Scenario(prepare_store, save(11, best=True, tag="again"), read_store),
}


@pytest.fixture(params=SCENARIOS, scope="module")
def case(request: pytest.FixtureRequest) -> Iterator[Case]:
    memory = Path("/dev/shm")  # thousands of small folders: in memory, where that can be had
    usable = memory.is_dir() and os.access(memory, os.W_OK)
    with tempfile.TemporaryDirectory(dir=memory if usable else None) as root:
        yield Case(SCENARIOS[request.param], Path(root))


class Case:
    """A scenario with its old state on disk, and what is read before and after."""

    def __init__(self, scenario: Scenario, root: Path) -> None:
        self.scenario, self.root, self.count = scenario, root, 0
        self.old_folder = root / "old"
        self.old_folder.mkdir()
        with intercepted(make):
            scenario.prepare(self.old_folder)
            self.old = scenario.read(self.copy())  # of a copy: reading may put something back
        folder = self.copy()
        counter = Trouble(10**6, "never")
        with intercepted(counter):
            scenario.act(folder)
        self.calls = counter.seen
        self.new = scenario.read(folder)
        assert self.calls >= 3 and self.old != self.new

    def copy(self) -> Path:
        self.count += 1
        return Path(shutil.copytree(self.old_folder, self.root / str(self.count)))

    def again(self, folder: Path) -> None:
        (self.scenario.again or self.scenario.act)(folder)

    def check(self, folder: Path, what: str, thoroughly: bool = True) -> None:
        """The old or the new state loads, and a later process saves and leaves no waste."""
        with intercepted(make):
            assert self.scenario.read(folder) in (self.old, self.new), what
            if not thoroughly:
                shutil.rmtree(folder)
                return
            self.again(folder)
            assert self.scenario.read(folder) == self.new, what
            if not self.scenario.cleans:
                for path in [folder, *folder.rglob("*")]:
                    if path.is_dir() and not path.name.startswith("."):
                        clean_leftovers(path)
        assert not [path for path in folder.rglob("*") if path.name.startswith(".")], what
        shutil.rmtree(folder)


@pytest.mark.parametrize("how", ["stop", "stop when done"])
def test_stopped_at_every_call(case: Case, how: str) -> None:
    for at in range(case.calls):
        folder = case.copy()
        with intercepted(Trouble(at, how)), pytest.raises(Stop):
            case.scenario.act(folder)
        case.check(folder, f"{how} at call {at}")


@pytest.mark.parametrize(
    ("how", "error"),
    [
        ("once", errno.ENOSPC),
        ("once", errno.EIO),
        ("once, but done", errno.EIO),
        ("dead disk", errno.ENOSPC),
    ],
)
def test_fault_at_every_call(case: Case, how: str, error: int) -> None:
    reported = 0
    for at in range(case.calls):
        folder = case.copy()
        trouble = Trouble(at, how, error)
        with intercepted(trouble):
            try:
                case.scenario.act(folder)
            except FileError as failure:
                reported += 1
                assert failure.errno == error
                assert "\n" not in str(failure)
                assert ("disk is full" if error == errno.ENOSPC else "disk reports") in str(failure)
            else:
                assert case.scenario.read(folder) == case.new, f"{how} at call {at}: no error"
        assert trouble.seen > at
        case.check(folder, f"{how} at call {at}", thoroughly=at % 3 == 0)
    assert reported >= 2


def test_what_lies_aside_is_whole_at_every_moment(tmp_path: Path) -> None:
    """A reader takes an `.old-` folder for the content, so it is never emptied under that name."""
    seen = 0
    for at in range(100):
        folder = tmp_path / str(at)
        with intercepted(make):
            write_folder(folder / "box", OLD)
        with intercepted(Trouble(at, "stop")), suppress(Stop):
            replace_box(folder)
        for aside in folder.glob(".box.old-*"):
            seen += 1
            assert read_folder(aside) == OLD
    assert seen >= 3


# --- power loss ----------------------------------------------------------------------------------


@dataclass
class FileNode:
    content: bytes = b""
    synced: bytes = b""

    def after_power_loss(self, rng: random.Random | None) -> FileNode:
        """What the medium holds: `rng` chooses; None is the least that must be there."""
        if rng is None or self.content == self.synced:
            return FileNode(self.synced, self.synced)
        kept = rng.randint(0, len(self.content))
        torn = self.content[:kept] + bytes(len(self.content) - kept)
        left = rng.choice([self.synced, self.content, self.content[:kept], torn])
        return FileNode(left, left)

    def write_to(self, path: Path) -> None:
        path.write_bytes(self.content)

    def key(self) -> object:
        return self.content


@dataclass
class FolderNode:
    entries: dict[str, FileNode | FolderNode] = field(default_factory=dict)
    synced: dict[str, FileNode | FolderNode] = field(default_factory=dict)
    pending: list[Callable[[dict[str, Any]], None]] = field(default_factory=list)

    def change(self, operation: Callable[[dict[str, Any]], None]) -> None:
        operation(self.entries)
        self.pending.append(operation)

    def sync(self) -> None:
        self.synced, self.pending = dict(self.entries), []

    def after_power_loss(self, rng: random.Random | None) -> FolderNode:
        entries = dict(self.synced)
        kept = 0 if rng is None else rng.randint(0, len(self.pending))
        for operation in self.pending[:kept]:
            operation(entries)
        left = {name: node.after_power_loss(rng) for name, node in entries.items()}
        return FolderNode(left, dict(left))

    def write_to(self, path: Path) -> None:
        path.mkdir()
        for name, node in self.entries.items():
            node.write_to(path / name)

    def key(self) -> object:
        return tuple((name, node.key()) for name, node in sorted(self.entries.items()))


def load_tree(path: Path) -> Any:
    """The model of what is at `path`, all of it on the medium."""
    if path.is_file():
        return FileNode(path.read_bytes(), path.read_bytes())
    entries = {child.name: load_tree(child) for child in path.iterdir()}
    return FolderNode(entries, dict(entries))


def move(source: str, target: str, entries: dict[str, Any]) -> None:
    entries[target] = entries.pop(source)


def remove(name: str, entries: dict[str, Any]) -> None:
    del entries[name]


def add(name: str, node: FileNode | FolderNode, entries: dict[str, Any]) -> None:
    entries[name] = node


class Disk:
    """Makes calls and keeps a model of what of them is on the medium."""

    def __init__(self, root: Path, each: Callable[[FolderNode], None]) -> None:
        self.root, self.tree, self.each = root, load_tree(root), each
        self.open: dict[int, FileNode] = {}

    def __call__(self, name: str, real: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        result = make(name, real, arguments)
        self.apply(name, arguments, result)
        self.each(self.tree)
        return result

    def folder(self, path: Path) -> FolderNode:
        node = self.tree
        for part in path.relative_to(self.root).parts:
            node = node.entries[part]
        return node

    def apply(self, name: str, arguments: tuple[Any, ...], result: Any) -> None:
        if name in ("write", "sync", "close"):
            node = self.open[arguments[0]]
            if name == "write":
                node.content += bytes(arguments[1][:result])
            elif name == "sync":
                node.synced = node.content
            return
        path = arguments[0]
        if name == "sync_folder":
            self.folder(path).sync()
            return
        operation = functools.partial(remove, path.name)
        if name == "rename":
            assert arguments[1].parent == path.parent
            operation = functools.partial(move, path.name, arguments[1].name)
        elif name == "make_folder":
            operation = functools.partial(add, path.name, FolderNode())
        elif name == "create":
            self.open[result] = FileNode()
            operation = functools.partial(add, path.name, self.open[result])
        self.folder(path.parent).change(operation)


class PowerLoss:
    """After each call, what the medium may hold is written out and read."""

    def __init__(self, case: Case, seeds: int, thorough_every: int) -> None:
        self.case, self.seeds, self.every, self.calls = case, seeds, thorough_every, 0
        self.seen: set[object] = set()

    def __call__(self, tree: FolderNode) -> None:
        self.calls += 1
        for seed in range(self.seeds):
            rng = random.Random(1000 * self.calls + seed) if seed else None
            left = tree.after_power_loss(rng)
            if left.key() in self.seen:
                continue
            self.seen.add(left.key())
            place = self.case.root / "after"
            left.write_to(place)
            what = f"power loss at call {self.calls}, seed {seed}"
            with after_the_crash():
                self.case.check(place, what, thoroughly=len(self.seen) % self.every == 0)


@contextmanager
def after_the_crash() -> Iterator[None]:
    """What is done here is not part of the trace, and the writer at work counts as dead."""
    active = set(leftovers._active)
    leftovers._active.clear()
    with intercepted(make):
        yield
    leftovers._active.update(active)


def test_power_loss_after_every_call(case: Case) -> None:
    loss = PowerLoss(case, seeds=6, thorough_every=7)
    folder = case.copy()
    disk = Disk(folder, loss)
    with intercepted(disk):
        case.scenario.act(folder)
    # What has returned is durable: now only the new state may be there.
    for seed in (None, 1, 2, 3):
        place = case.root / "done"
        disk.tree.after_power_loss(random.Random(seed) if seed else None).write_to(place)
        with after_the_crash():
            assert case.scenario.read(place) == case.new
        shutil.rmtree(place)
    assert loss.calls == case.calls
    assert len(loss.seen) > 3


def test_power_loss_while_a_later_process_saves(case: Case) -> None:
    """A process is killed at some call; power is lost while the next one saves again."""
    rng, seen = random.Random(5), 0
    for at in sorted(rng.sample(range(case.calls), min(6, case.calls))):
        folder = case.copy()
        disk = Disk(folder, lambda tree: None)
        with intercepted(Trouble(at, "stop", make=disk)), suppress(Stop):
            case.scenario.act(folder)
        disk.each = loss = PowerLoss(case, seeds=3, thorough_every=11)
        with intercepted(disk):
            case.again(folder)
        seen += len(loss.seen)
    assert seen > 3
