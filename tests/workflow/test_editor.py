"""The editor: changes of a file's text, what its page is told, and who may ask."""

from __future__ import annotations

import http.client
import json
import random
import re
import signal
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from magmadnn.errors import ArgumentError, DataError, UnknownNameError, WorkflowError
from magmadnn.workflow.editor.document import edited
from magmadnn.workflow.editor.server import Editor, EditorServer
from magmadnn.workflow.editor.view import NEW, fields, view

TEXT = """# about all
name = "coupled"  # n

[[modules]]
name = "simulate" # the model
library = "libsim.so"

# judges
[[modules]]
name = "judge"
function = "judge:judge"
puts = [
  "x",  # first
  "converged",
]
[modules.environment]
A = "1"  # one
[[groups]]
name = "loop"
modules = ["simulate", "judge"]  # both
iterations = 50
# about post
[[modules]]
name = "post"
command = ["./post"]
after = ["loop"]
"""


BOTH = 'modules = ["simulate", "judge"]  # both'


def differences(before: str, after: str) -> tuple[list[str], list[str]]:
    """Lines that went, and lines that came."""
    old, new = before.splitlines(), after.splitlines()
    return [x for x in old if x not in new], [x for x in new if x not in old]


@pytest.mark.parametrize(
    ("change", "gone", "come"),
    [
        ({"op": "set", "table": ["modules", 2], "key": "ranks", "value": 3}, [], ["ranks = 3"]),
        (
            {"op": "set", "table": ["modules", 0], "key": "command", "value": ["a", "b"]},
            ['library = "libsim.so"'],
            ['command = ["a", "b"]'],
        ),
        (
            {"op": "set", "table": ["modules", 1], "key": "puts", "value": ["x", "y"]},
            ['  "converged",'],
            ['  "y",'],
        ),
        (
            {"op": "set", "table": ["modules", 1], "key": "environment", "value": {"A": "2"}},
            ['A = "1"  # one'],
            ['A = "2"  # one'],
        ),
        (
            {"op": "set", "table": ["groups", 0], "key": "iterations", "value": None},
            ["iterations = 50"],
            [],
        ),
        ({"op": "set", "table": [], "key": "pin", "value": False}, [], ["pin = false"]),
        (
            {"op": "set", "table": ["tuple_space"], "key": "servers", "value": 2},
            [],
            ["[tuple_space]", "servers = 2"],
        ),
        (
            {"op": "rename", "kind": "modules", "index": 1, "name": "test"},
            ['name = "judge"', BOTH],
            ['name = "test"', 'modules = ["simulate", "test"]  # both'],
        ),
        (
            {"op": "rename", "kind": "groups", "index": 0, "name": "again"},
            ['name = "loop"', 'after = ["loop"]'],
            ['name = "again"', 'after = ["again"]'],
        ),
        (
            {"op": "remove", "kind": "modules", "index": 0},
            ['name = "simulate" # the model', 'library = "libsim.so"', BOTH],
            ['modules = ["judge"]  # both'],
        ),
        (
            {"op": "remove", "kind": "groups", "index": 0},
            ["[[groups]]", 'name = "loop"', BOTH, "iterations = 50", 'after = ["loop"]'],
            [],
        ),
        ({"op": "add", "kind": "groups", "name": "g"}, [], ['name = "g"', "modules = []"]),
    ],
)  # fmt: skip
def test_a_change_touches_its_lines_only(
    change: dict[str, Any], gone: list[str], come: list[str]
) -> None:
    assert differences(TEXT, edited(TEXT, change)) == (gone, come)


def a_workflow(draw: random.Random) -> str:
    """A file with tables in any order, comments everywhere, and values over several lines."""
    names = [f"m{k}" for k in range(draw.randint(1, 5))]
    parts = []
    for k, name in enumerate(names):
        rows = [
            "[[modules]]",
            f'name = "{name}"  # name of {name}',
            'command = ["a",\n  "b", # b\n]',
        ]
        if k and draw.random() < 0.5:
            rows.append(f"after = {json.dumps(draw.sample(names[:k], draw.randint(1, k)))}")
        if draw.random() < 0.3:
            rows += ["# before the table", "[modules.environment]", 'X = "y"']
        parts.append("\n".join(rows))
    if draw.random() < 0.5:
        parts.append(f'[[groups]]\nname = "g"\nmodules = {json.dumps(names[:2])} # both')
    if draw.random() < 0.3:
        parts.append("[tuple_space]\nservers = 2 # two")
    draw.shuffle(parts)
    ends = [f"\n{'# of the end' if draw.random() < 0.5 else ''}\n" for _ in parts]
    return "# first\npin = true\n" + "".join(x + y for x, y in zip(parts, ends, strict=True))


def a_change(draw: random.Random, data: dict[str, Any]) -> dict[str, Any]:
    kind = draw.choice([kind for kind in ("modules", "groups") if data.get(kind)] or ["groups"])
    count = len(data.get(kind, []))
    operation = draw.choice(["set", "set", "add", "remove", "rename"] if count else ["add"])
    where = {"kind": kind, "index": draw.randrange(count)} if count else {"kind": kind}
    if operation != "set":
        return {"op": operation, **where, "name": f"n{draw.randrange(1000)}"}
    key, value = draw.choice(
        [("ranks", 2), ("args", ["--x", "é\n\"'"]), ("time_limit", 1.5), ("after", ["m0"])]
        if kind == "modules"
        else [("until", "t"), ("iterations", 3), ("modules", ["m0", "m1", "m2"]), ("after", None)]
    )
    return {"op": "set", "table": [kind, where["index"]], "key": key, "value": value}


def meant(data: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    """What a file says after a change, from its JSON text."""
    found: dict[str, Any] = json.loads(json.dumps(data))
    if change["op"] == "set":
        kind, index = change["table"]
        found[kind][index][change["key"]] = change["value"]
        if change["value"] is None:
            del found[kind][index][change["key"]]
        return found
    rows = found.setdefault(change["kind"], [])
    if change["op"] == "add":
        first = {"command": ["true"]} if change["kind"] == "modules" else {"modules": []}
        return {**found, change["kind"]: [*rows, {"name": change["name"], **first}]}
    old = rows[change["index"]]["name"]
    if change["op"] == "remove":
        rows.pop(change["index"])
    else:
        rows[change["index"]]["name"] = change["name"]
    for row in [*found.get("modules", []), *found.get("groups", [])]:
        for key in {"after", "modules"} & row.keys():
            new = [change["name"] if x == old and change["op"] == "rename" else x for x in row[key]]
            row[key] = [x for x in new if change["op"] == "rename" or x != old]
            if key == "after" and not row[key] and old in data_names(data):
                del row[key]
    return {k: v for k, v in found.items() if v != []}


def data_names(data: dict[str, Any]) -> list[str]:
    return [row["name"] for kind in ("modules", "groups") for row in data.get(kind, [])]


@pytest.mark.parametrize("seed", range(20))
def test_random_changes_of_random_files_lose_nothing(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(10):
        text = a_workflow(draw)
        for _ in range(6):
            data = tomllib.loads(text)
            change = a_change(draw, data)
            new = edited(text, change)
            wanted, found = meant(data, change), tomllib.loads(new)
            assert {k: v for k, v in found.items() if v != []} == {
                k: v for k, v in wanted.items() if v != []
            }, (text, change)
            if change["op"] in ("set", "rename", "add"):
                comments = [re.findall(r"# (?!b$).*", one) for one in (text, new)]
                assert comments[0] == comments[1], (text, change)
            text = new


def test_a_file_with_other_line_ends_or_none_at_the_end_keeps_them() -> None:
    change = {"op": "set", "table": ["modules", 0], "key": "ranks", "value": 2}
    first, second = '[[modules]]\r\nname = "a"\r\n', '\r\n[[modules]]\r\nname = "b"'
    windows = edited(first + second, change)
    assert windows == first + "ranks = 2\r\n" + second


def test_tables_on_one_line_are_changed_in_place_or_refused() -> None:
    text = 'modules = [{name = "a", command = ["b"]}]  # short\n'
    assert (
        edited(text, {"op": "set", "table": ["modules", 0], "key": "ranks", "value": 2})
        == 'modules = [{name = "a", command = ["b"], ranks = 2}]  # short\n'
    )
    with pytest.raises(ArgumentError, match="laid out so that the change cannot be made here"):
        edited(text, {"op": "add", "kind": "modules", "name": "x"})


@pytest.mark.parametrize(
    "change",
    [
        {"op": "set", "table": ["modules", 9], "key": "ranks", "value": 1},
        {"op": "set", "table": ["other"], "key": "ranks", "value": 1},
        {"op": "set", "table": ["modules", 0]},
        {"op": "remove", "kind": "modules", "index": -1},
        {"op": "remove", "kind": "modules", "index": True},
        {"op": "add", "kind": "pin", "name": "x"},
        {"op": "rename", "kind": "groups", "index": 3, "name": "x"},
    ],
)
def test_what_is_no_change_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match="not a change of this file"):
        edited(TEXT, change)


def test_an_unknown_operation_and_a_broken_text_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'rename'"):
        edited(TEXT, {"op": "renam"})
    with pytest.raises(ArgumentError, match="is no TOML"):
        edited("a = ", {"op": "add", "kind": "modules", "name": "x"})


# --- the page ------------------------------------------------------------------------------------------


def test_what_the_page_shows_of_a_text(tmp_path: Path) -> None:
    file = tmp_path / "w.toml"
    good = view(NEW, file)
    assert good["faults"] == [] and good["ranks"] == 3 and good["svg"].startswith("<svg")
    assert good["data"]["modules"] == [{"name": "first", "command": ["true"]}]
    typo = view(NEW + "rank = 2\n", file)
    assert (
        typo["faults"]
        == [{"line": 7, "text": "unknown key of modules: 'rank'; did you mean 'ranks'?"}]
        or "ranks" in typo["faults"][0]["text"]
    )
    assert typo["faults"][0]["line"] == 7 and typo["svg"] is None and typo["data"] is not None
    broken = view("a = [\n", file)
    assert broken["data"] is None and "is no TOML" in broken["faults"][0]["text"]
    again = '[[modules]]\nname = "second"\ncommand = ["true"]\nafter = ["first"]\n'
    circle = view(f'{NEW}after = ["second"]\n{again}', file)
    assert circle["svg"] is None and "a circle" in circle["faults"][0]["text"]
    json.dumps(view("x = 1979-05-27\ny = nan\n", file), allow_nan=False)


def test_forms_ask_for_all_that_the_file_may_hold() -> None:
    kinds = {one["key"]: one["kind"] for one in fields()["modules"]}
    assert kinds["ranks"] == "integer" and kinds["time_limit"] == "number"
    assert kinds["after"] == "names" and kinds["on_failure"] == "choice"
    assert kinds["command"] == "array" and kinds["environment"] == "object"
    assert [one["key"] for one in fields()["tuple_space"]] == ["servers", "copies", "memory"]


@contextmanager
def served(file: Path) -> Iterator[EditorServer]:
    server = EditorServer(file)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def asked(
    server: EditorServer, method: str, path: str, body: bytes = b"{}", **heads: str
) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    given = {name.replace("_", "-"): value for name, value in heads.items()}
    connection.request(method, path, body if method == "POST" else None, given)
    answer = connection.getresponse()
    found = answer.status, dict(answer.getheaders()), answer.read()
    connection.close()
    return found


def test_only_the_page_may_ask(tmp_path: Path) -> None:
    with served(tmp_path / "w.toml") as server:
        token, here = server.token, f"127.0.0.1:{server.port}"
        status, heads, body = asked(server, "GET", f"/?token={token}")
        nonce = re.search(r'<script nonce="([^"]+)">', body.decode())
        assert status == 200 and nonce is not None
        assert f"script-src 'nonce-{nonce[1]}'" in heads["Content-Security-Policy"]
        assert token.encode() not in body
        assert asked(server, "POST", "/open", X_Token=token)[0] == 200
        assert asked(server, "POST", "/open", X_Token=token, Origin=f"http://{here}")[0] == 200
        for refused in (
            asked(server, "GET", "/"),
            asked(server, "GET", "/?token=x"),
            asked(server, "GET", "/report"),
            asked(server, "POST", "/open"),
            asked(server, "POST", "/open", X_Token="é"),
            asked(server, "POST", "/open", X_Token=token, Host="evil.example"),
            asked(server, "POST", "/open", X_Token=token, Origin="http://evil.example"),
            asked(server, "POST", "/open", X_Token=token, Origin="null"),
        ):
            assert refused[0] == 403, refused
        assert asked(server, "POST", "/nothing", X_Token=token)[0] == 404
        assert asked(server, "POST", "/show", b"[", X_Token=token)[0] == 400
        assert asked(server, "POST", "/show", b"[1]", X_Token=token)[0] == 400
        assert asked(server, "POST", "/show", X_Token=token, Content_Length="99999999999")[0] == 413
        status, _, body = asked(server, "POST", "/show", b'{"text": 3}', X_Token=token)
        assert status == 409 and "text must be a text" in json.loads(body)["error"]
        status, _, body = asked(server, "GET", f"/report?token={token}")
        assert status == 409 and "no run to report on" in json.loads(body)["error"]


def test_the_page_names_only_what_is_in_it() -> None:
    page = (Path(__file__).parents[2] / "magmadnn/workflow/editor/page.html").read_text()
    there = set(re.findall(r'\bid="([^"]+)"', page))
    assert set(re.findall(r'\bat\("([^"]+)"\)', page)) == there - {"left"}
    assert "http://" not in page and "https://" not in page  # nothing comes from elsewhere


def test_a_file_that_another_program_has_changed_is_not_overwritten(tmp_path: Path) -> None:
    file = tmp_path / "w.toml"
    editor = Editor(file)
    opened = editor.open()
    assert opened["is_new"] and opened["text"] == NEW
    editor.save({"text": NEW, "before": None})
    assert file.read_text() == NEW
    file.write_text(NEW + "# mine\n")
    with pytest.raises(DataError, match="changed by another program"):
        editor.save({"text": "name = 'x'", "before": NEW})
    assert file.read_text() == NEW + "# mine\n"
    with pytest.raises(DataError, match="is not what the page shows; save it first"):
        editor.run({"text": NEW})
    with pytest.raises(WorkflowError, match="no run to stop"):
        editor.stop({})


def test_from_the_page_to_the_file_to_the_executive_and_back(tmp_path: Path) -> None:
    pytest.importorskip("mpi4py")
    file = tmp_path / "w.toml"
    editor = Editor(file)
    text = editor.edit(
        {"text": NEW, "change": {"op": "set", "table": ["modules", 0], "key": "copies", "value": 2}}
    )["text"]
    editor.save({"text": text, "before": None})
    editor.run({"text": text})
    with pytest.raises(WorkflowError, match="goes on; stop it first"):
        editor.run({"text": text})
    until = time.monotonic() + 60
    while editor.runs.are_going and time.monotonic() < until:
        time.sleep(0.05)
    state = editor.runs.state()
    assert state["finish"] == "done", state
    assert sorted(run["key"] for run in state["runs"]) == ["first.0", "first.1"]
    assert {run["state"] for run in state["runs"]} == {"done"}
    assert "<svg" in editor.runs.report()
    assert Editor(file).runs.state()["folder"] == state["folder"]  # another editor shows it too
    editor.runs.close()


def test_a_run_that_cannot_begin_says_why(tmp_path: Path) -> None:
    file = tmp_path / "w.toml"
    text = NEW.replace('"true"', '"no-such-program"')
    file.write_text(text)
    editor = Editor(file)
    editor.run({"text": text})
    assert editor.runs._process is not None
    assert editor.runs._process.wait(60) == 2
    state = editor.runs.state()
    assert "no-such-program" in state["said"] and state["folder"] == "" and not state["going"]
    editor.runs.close()


def test_the_command_prints_its_address_and_ends_by_control_c(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "magmadnn", "workflow", "edit", "w.toml", "--no-browser"]
    running = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    assert running.stdout is not None
    line = running.stdout.readline()
    found = re.search(r"http://127\.0\.0\.1:(\d+)/\?token=\S+", line)
    assert found is not None, line
    other = subprocess.run(
        [*command, "--port", found[1]], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert other.returncode == 2 and f"cannot listen on port {found[1]}" in other.stderr
    running.send_signal(signal.SIGINT)
    assert running.wait(20) == 0
    running.stdout.close()
