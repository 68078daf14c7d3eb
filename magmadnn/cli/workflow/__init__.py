"""magmadnn workflow: programs that run by dependency inside one job of MPI."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from magmadnn.cli.arguments import Parser, whole
from magmadnn.cli.console import Console
from magmadnn.errors import ArgumentError, UnknownNameError
from magmadnn.storage.places import expanded

if TYPE_CHECKING:
    from magmadnn.workflow.description.history import History

_ABOUT = """Programs that run by dependency inside one job of MPI, as a TOML file says.

  edit FILE      write the file in a browser, with forms, its picture and its faults, and run it
  check FILE     look for everything that is wrong with it; --schema prints its JSON Schema
  graph FILE     draw what comes after what, as SVG
  plan FILE      when each module is expected to run
  run FILE       check, then run
  status DIR     what has become of the modules; also while it runs
  resume DIR     go on with a run that ended early
  stop DIR       begin nothing more; --now ends what runs
  report DIR     a page with what was planned and what came

In place of DIR stands the FILE too: its latest run is meant then."""
_ACTIONS = ("edit", "check", "graph", "plan", "run", "status", "resume", "stop", "report")


def parser() -> Parser:
    """The arguments of the command."""
    made = Parser("workflow", _ABOUT)
    made.add_argument("action", metavar="ACTION", help=", ".join(_ACTIONS))
    made.add_argument(
        "file", nargs="?", metavar="FILE|DIR", help="workflow as TOML, or folder of a run"
    )
    made.add_argument("-n", "--ranks", type=whole(3), metavar="N", help="ranks of the whole job")
    made.add_argument(
        "--out", metavar="PLACE", help="folder of the run, or file of picture or page"
    )
    made.add_argument(
        "--with-ft",
        metavar="ulfm",
        help="of run and resume: go on when ranks of modules are killed (Open MPI)",
    )
    made.add_argument(
        "--spares",
        type=whole(0),
        default=1,
        metavar="N",
        help="ranks that then wait to take over (1)",
    )
    made.add_argument("--earlier", metavar="DIR", help="of plan: a run that times are taken from")
    made.add_argument(
        "--port", type=whole(0), default=0, metavar="N", help="of edit: 0: one that is free (0)"
    )
    made.add_argument(
        "--no-browser", action="store_true", help="of edit: print the address and open nothing"
    )
    made.add_argument("--schema", action="store_true", help="of check: print the JSON Schema")
    made.add_argument("--now", action="store_true", help="of stop: end what runs")
    made.add_argument("--quiet", action="store_true", help="print nothing but errors")
    return made


def run(argv: Sequence[str]) -> int:
    """Do what was asked; returns the exit code: 1 where a run failed.

    Raises:
        MagmaDNNError: whatever is wrong with arguments, file or folder.
    """
    arguments = parser().read(argv)
    action = arguments.action
    if action not in _ACTIONS:
        raise UnknownNameError.of("workflow: action", action, _ACTIONS)
    if action == "check" and arguments.schema:
        from magmadnn.workflow.description.model import schema

        print(json.dumps(schema(), indent=2))
        return 0
    if arguments.file is None:
        raise ArgumentError(f"workflow {action}: FILE is missing; see magmadnn workflow --help")
    say = Console(arguments.quiet)
    doing: dict[str, Callable[[], int]] = {
        "edit": lambda: _edit(arguments),
        "check": lambda: _check(arguments.file, arguments.ranks, say),
        "graph": lambda: _graph(arguments.file, arguments.out, say),
        "plan": lambda: _plan(arguments.file, arguments.ranks, arguments.earlier),
        "run": lambda: _run(arguments, say),
        "status": lambda: _status(arguments.file),
        "resume": lambda: _resume(arguments, say),
        "stop": lambda: _stop(arguments.file, arguments.now, say),
        "report": lambda: _report(arguments.file, arguments.out, say),
    }
    return doing[action]()


def _edit(arguments: Namespace) -> int:
    import webbrowser

    from magmadnn.workflow.editor.server import serve

    def opened(address: str) -> None:
        print(f"{arguments.file}: open {address} (Ctrl-C ends the editor; runs go on)", flush=True)
        if not arguments.no_browser:
            webbrowser.open(address)

    try:
        serve(expanded(arguments.file), arguments.port, opened)
    except KeyboardInterrupt:
        return 0
    return 0


def _check(file: str, ranks: int | None, say: Console) -> int:
    from magmadnn.errors import DataError
    from magmadnn.workflow.description.checking import check
    from magmadnn.workflow.description.dependencies import ranks_needed
    from magmadnn.workflow.description.reading import read_workflow

    try:
        found = read_workflow(expanded(file))
        servers = found.model.tuple_space.servers
        check(found, None if ranks is None else max(0, ranks - 1 - servers))
    except DataError as error:  # all faults, a line for each
        for line in str(error).splitlines():
            print(f"magmadnn: error: {line}", file=sys.stderr)
        return 2
    needed = ranks_needed(found)
    say(
        f"{file}: {len(found.model.modules)} modules, nothing is wrong; mpiexec -n {needed + 1 + servers}"
    )
    return 0


def _graph(file: str, out: str | None, say: Console) -> int:
    from magmadnn.workflow import Workflow

    path = expanded(out or str(Path(file).with_suffix(".svg")))
    say(f"graph in {Workflow.load(expanded(file)).graph(path)}")
    return 0


def _plan(file: str, ranks: int | None, earlier: str | None) -> int:
    from magmadnn.workflow import Workflow

    known = None
    if earlier is not None:
        known = _history(earlier)[1]
    print(Workflow.load(expanded(file)).plan(ranks, known))
    return 0


def _run(arguments: Namespace, say: Console) -> int:
    from magmadnn.workflow import Workflow

    workflow = Workflow.load(expanded(arguments.file))
    out = None if arguments.out is None else expanded(arguments.out)
    return _told(lambda: workflow.run(out, **_how(arguments)), say)


def _how(arguments: Namespace) -> dict[str, Any]:
    names = ("ranks", "with_ft", "spares")
    return {name: getattr(arguments, name) for name in names}


def _told(go: Callable[[], object], say: Console) -> int:
    """Run; the exit code, and one line of how it ended."""
    from magmadnn.errors import WorkflowError

    try:
        finished = go()
    except WorkflowError as error:
        print(f"magmadnn: error: {str(error).splitlines()[0]}", file=sys.stderr)
        return 1
    say(f"done; log and output in {getattr(finished, 'folder', '')}")
    return 0


def _resume(arguments: Namespace, say: Console) -> int:
    from magmadnn.workflow import Workflow
    from magmadnn.workflow.ranks.plan_folder import open_folder

    folder = open_folder(_folder(arguments.file))
    file = folder.description.file
    if not file:
        raise ArgumentError(
            f"workflow resume: {folder.path} was begun from Python; run the same program with "
            "run(out, resume=True)"
        )
    workflow = Workflow.load(file)
    return _told(lambda: workflow.run(folder.path, resume=True, **_how(arguments)), say)


def _status(place: str) -> int:
    from magmadnn.workflow.reporting.table import status_table

    folder, history = _history(place)
    print(status_table(folder, history))
    return 0


def _stop(place: str, now: bool, say: Console) -> int:
    from magmadnn.storage.durable import write_file
    from magmadnn.workflow.ranks.plan_folder import STOP

    folder = _folder(place)
    if finish := _history(str(folder))[1].finish:
        say(f"{folder} has ended already: {finish}")
        return 0
    write_file(folder / STOP, b"now\n" if now else b"then\n")
    say(f"{folder} ends {'now' if now else 'when what runs has ended'}")
    return 0


def _report(place: str, out: str | None, say: Console) -> int:
    from magmadnn.storage.durable import write_file
    from magmadnn.workflow.ranks.plan_folder import open_folder
    from magmadnn.workflow.reporting.page import page

    path, history = _history(place)
    target = expanded(out) if out is not None else path / "report.html"
    write_file(target, page(open_folder(path).description, history).encode())
    say(f"report in {target}")
    return 0


def _history(place: str) -> tuple[Path, History]:
    from magmadnn.workflow.description.history import History
    from magmadnn.workflow.ranks.plan_folder import open_folder

    folder = open_folder(_folder(place))
    return folder.path, History.of(folder.records())


def _folder(place: str) -> Path:
    """The folder of a run; of a workflow's file that of its latest.

    Raises:
        ArgumentError: there is none.
    """
    path = expanded(place)
    if path.is_dir():
        return path
    from magmadnn.workflow.description.reading import read_workflow
    from magmadnn.workflow.ranks.plan_folder import latest_run

    found = read_workflow(path)
    latest = latest_run(found)
    if latest is None:
        raise ArgumentError(
            f"workflow: {place} has no run in {found.base / 'runs'}; give its folder"
        )
    return latest
