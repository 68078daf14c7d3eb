"""The editor's server: on this machine only, for who has its address.

It starts programs, so: it listens on 127.0.0.1; each request bears a token that is in the address which the
command prints; requests under another host name or from another page are refused; a body is JSON of bounded
size; nothing of it is run but the file, as it is on the disk, after all checks of `magmadnn workflow run`.
"""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from magmadnn.errors import ArgumentError, DataError, MagmaDNNError, shown
from magmadnn.storage.disk import is_there
from magmadnn.storage.durable import write_file
from magmadnn.workflow.description.reading import text_of

from .document import edited
from .runs import Runs
from .view import NEW, fields, view

_HOST = "127.0.0.1"
_MOST = 1 << 24  # bytes of a request: those of a workflow's file
_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)


class Editor:
    """What the page may ask for, without the network.

    Args:
        file: the workflow; it may be missing, and is made when it is saved.
    """

    def __init__(self, file: Path) -> None:
        self.file, self.runs = file, Runs(file)
        self._lock = threading.Lock()

    def open(self) -> dict[str, Any]:
        """The file as it is."""
        text = text_of(self.file) if is_there(self.file) else NEW
        about = {"file": shown(self.file), "fields": fields(), "is_new": not is_there(self.file)}
        return {**view(text, self.file), **about}

    def show(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """A text that was typed."""
        return view(_text(asked, "text"), self.file)

    def edit(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """A text after a change that a form made; see `document.edited`."""
        change = asked.get("change")
        if not isinstance(change, dict):
            raise ArgumentError("workflow edit: change must be a table")
        return view(edited(_text(asked, "text"), change), self.file)

    def save(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Write a text, if the file still is what the page had read or written last (`before`)."""
        text, before = _text(asked, "text"), asked.get("before")
        with self._lock:
            now = text_of(self.file) if is_there(self.file) else None
            if now != before:
                raise DataError(
                    f"{shown(self.file)} has been changed by another program since it was opened here; copy "
                    "what you need, and open the page again"
                )
            write_file(self.file, text.encode())
        return {}

    def run(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Run the file, which must be the text that the page shows."""
        if not is_there(self.file) or text_of(self.file) != _text(asked, "text"):
            raise DataError(f"{shown(self.file)} is not what the page shows; save it first")
        with self._lock:
            self.runs.start()
        return {}

    def stop(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Stop the latest run."""
        self.runs.stop(asked.get("now") is True)
        return {}


def _text(asked: Mapping[str, Any], name: str) -> str:
    text = asked.get(name)
    if not isinstance(text, str):
        raise ArgumentError(f"workflow edit: {name} must be a text")
    return text


class EditorServer(ThreadingHTTPServer):
    """Serves the page and what it asks for.

    Args:
        file: the workflow.
        port: 0: one that is free.

    Attributes:
        address: to be opened in a browser; it holds the token.
    """

    daemon_threads = True

    def __init__(self, file: Path, port: int = 0) -> None:
        self.editor, self.token = Editor(file), secrets.token_urlsafe(24)
        super().__init__((_HOST, port), _Handler)
        self.port = int(self.server_address[1])
        self.address = f"http://{_HOST}:{self.port}/?token={self.token}"

    def server_close(self) -> None:
        """Stop listening; runs go on."""
        super().server_close()
        self.editor.runs.close()


class _Handler(BaseHTTPRequestHandler):
    server: EditorServer
    protocol_version = "HTTP/1.1"
    timeout = 30

    def do_GET(self) -> None:
        address = urlsplit(self.path)
        token = parse_qs(address.query).get("token", [""])[0]
        if not self._may(token):
            return
        if address.path == "/":
            self._send_page(_page())
        elif address.path == "/report":
            self._answer(lambda: self._send_page(self.server.editor.runs.report()))
        else:
            self._refuse(HTTPStatus.NOT_FOUND, f"nothing is at {address.path}")

    def do_POST(self) -> None:
        editor = self.server.editor
        doing: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "/open": lambda _: editor.open(),
            "/show": editor.show,
            "/edit": editor.edit,
            "/save": editor.save,
            "/run": editor.run,
            "/stop": editor.stop,
            "/state": lambda _: editor.runs.state(),
        }
        if not self._may(self.headers.get("X-Token", "")):
            return
        if self.path not in doing:
            self._refuse(HTTPStatus.NOT_FOUND, f"nothing is at {self.path}")
        elif (asked := self._body()) is not None:
            self._answer(lambda: self._send_json(doing[self.path](asked)))

    def _may(self, token: str) -> bool:
        """Whether a request is from the page, or opens it; otherwise it is refused."""
        hosts = (f"{_HOST}:{self.server.port}", f"localhost:{self.server.port}")
        origin = self.headers.get("Origin")
        if self.headers.get("Host") not in hosts:
            self._refuse(HTTPStatus.FORBIDDEN, f"open it as http://{hosts[0]}")
        elif origin is not None and origin not in [f"http://{host}" for host in hosts]:
            self._refuse(HTTPStatus.FORBIDDEN, "another page may not ask")
        elif not secrets.compare_digest(token.encode(), self.server.token.encode()):
            self._refuse(HTTPStatus.FORBIDDEN, "use the whole address that the command printed")
        else:
            return True
        return False

    def _body(self) -> dict[str, Any] | None:
        """The table that a request holds; otherwise it is refused."""
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > _MOST:
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"expected up to {_MOST} bytes")
            return None
        try:
            asked = json.loads(self.rfile.read(int(length)))
        except (ValueError, RecursionError):
            asked = None
        if not isinstance(asked, dict):
            self._refuse(HTTPStatus.BAD_REQUEST, "expected a table in JSON")
            return None
        return asked

    def _answer(self, do: Callable[[], None]) -> None:
        try:
            do()
        except MagmaDNNError as error:
            self._refuse(HTTPStatus.CONFLICT, str(error))

    def _refuse(self, status: HTTPStatus, text: str) -> None:
        self.close_connection = True  # what is left of the request is not read
        self._send(status, json.dumps({"error": text}).encode(), "application/json")

    def _send_json(self, found: dict[str, Any]) -> None:
        self._send(HTTPStatus.OK, json.dumps(found).encode(), "application/json")

    def _send_page(self, text: str) -> None:
        nonce = secrets.token_urlsafe(16)
        policy = f"{_POLICY}; script-src 'nonce-{nonce}'"
        data = text.replace("NONCE", nonce, 1) if 'nonce="NONCE"' in text else text
        self._send(HTTPStatus.OK, data.encode(), "text/html; charset=utf-8", policy)

    def _send(self, status: HTTPStatus, data: bytes, kind: str, policy: str = _POLICY) -> None:
        self.send_response(status)
        heads = {
            "Content-Type": kind,
            "Content-Length": str(len(data)),
            "Content-Security-Policy": policy,
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
            "Cache-Control": "no-store",
            **({"Connection": "close"} if self.close_connection else {}),
        }
        for name, value in heads.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: requests hold the token."""


def _page() -> str:
    return files("magmadnn.workflow.editor").joinpath("page.html").read_text("utf-8")


def serve(file: Path, port: int, opened: Callable[[str], object]) -> None:
    """Serve until Ctrl-C.

    Args:
        file: the workflow.
        port: 0: one that is free.
        opened: is called with the address once it can be opened.

    Raises:
        ArgumentError: the port is taken.
    """
    try:
        server = EditorServer(file, port)
    except OSError as error:
        raise ArgumentError(
            f"workflow edit: cannot listen on port {port}: {error.strerror}; choose another --port"
        ) from error
    try:
        opened(server.address)
        server.serve_forever()
    finally:
        server.server_close()
