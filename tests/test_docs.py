"""The examples in the documentation run as they are written.

Pages: the ```python blocks of a Markdown page run from top to bottom in one namespace, in an empty
folder, with the repository's data sets. A block with `>>>` prompts must print what it shows, and a
```text block straight after a ```python block is what that one must print; `...` stands for anything.
A page with the comment `<!-- long -->` runs with `scripts/test --all` only.

Docstrings: their `>>>` examples, with the module's names at hand.
"""

from __future__ import annotations

import contextlib
import doctest
import importlib
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "magmadnn").rglob("*.md")]
BLOCK = re.compile(
    r"^```python\n(?P<code>.*?)^```$(?:\n+^```text\n(?P<printed>.*?)^```$)?",
    re.MULTILINE | re.DOTALL,
)
# Files that a page tells its reader to write, or not to.
NOT_THERE = ("/reversed_rows.py", "/NAME.py", ": ops/softmax.py")
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def long_page(path: Path) -> bool:
    return "<!-- long -->" in path.read_text(encoding="utf-8")


PAGES_WITH_EXAMPLES = [
    pytest.param(
        path,
        id=str(path.relative_to(ROOT)),
        marks=[pytest.mark.long] if long_page(path) else [],
    )
    for path in sorted(PAGES)
    if BLOCK.search(path.read_text(encoding="utf-8"))
]
MODULES_WITH_EXAMPLES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for path in sorted((ROOT / "magmadnn").rglob("*.py"))
    if ">>> " in path.read_text(encoding="utf-8")
]


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MAGMADNN_DATA", str(ROOT / "data"))


def check(example: doctest.DocTest) -> None:
    """Run a doctest; fail with its report."""
    report: list[str] = []
    runner = doctest.DocTestRunner(optionflags=OPTIONS)
    runner.run(example, out=report.append, clear_globs=False)
    if runner.failures:
        pytest.fail("".join(report), pytrace=False)


def compile_at(code: str, path: Path, line: int) -> CodeType:
    """Compile a block so that a traceback points at its lines in the page."""
    return compile("\n" * line + code, str(path), "exec", dont_inherit=True)


def run_block(code: CodeType, names: dict[str, Any], printed: str | None, where: str) -> None:
    """Run a block; fail if it prints something else than the page shows."""
    with contextlib.redirect_stdout(io.StringIO()) as output:
        exec(code, names)
    if printed is None:
        return
    # Columns count here, so only spaces at the end of a line are left out of the comparison.
    expected, got = (
        "".join(f"{x.rstrip()}\n" for x in t.splitlines()) for t in (printed, output.getvalue())
    )
    if not doctest.OutputChecker().check_output(expected, got, doctest.ELLIPSIS):
        pytest.fail(f"{where} shows\n{expected}but it printed\n{got}", pytrace=False)


class Pages:
    """A process that has imported the package, and runs each page in a copy of itself."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def run(self, path: Path, printed: Path) -> int:
        """The exit code of a page in this folder; what it prints is in the file `printed`."""
        if self._process is None:
            # as threads of BLAS would not be in the copies
            environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
            command = [sys.executable, "-W", "error", str(Path(__file__))]
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
            )
        process, answer = self._process, ""
        assert process.stdin is not None and process.stdout is not None
        try:
            print(json.dumps([str(path), str(Path.cwd()), str(printed)]), file=process.stdin)
            process.stdin.flush()
            answer = process.stdout.readline()
        finally:
            if not answer:
                self.end()
        return int(answer)

    def end(self) -> None:
        """End the process."""
        if self._process is not None:
            with self._process as process:
                process.kill()
            self._process = None


@pytest.fixture(scope="module")
def pages() -> Iterator[Pages]:
    made = Pages()
    yield made
    made.end()


def check_page(path: Path, pages: Pages, printed: Path) -> None:
    """Run a page in a process of its own, as it may define ops and losses; fail with what it says."""
    if pages.run(path, printed):
        pytest.fail(f"{path.name}:\n{printed.read_text(encoding='utf-8')}", pytrace=False)


@pytest.mark.parametrize("path", PAGES_WITH_EXAMPLES)
def test_page(path: Path, pages: Pages, tmp_path_factory: pytest.TempPathFactory) -> None:
    check_page(path, pages, tmp_path_factory.mktemp("page") / "printed")


def run_pages() -> None:
    """For each line of standard input, run its page in a copy of this process, and print the exit code."""
    import magmadnn.runtime.cpu.native
    import magmadnn.training  # noqa: F401  (most pages need both)

    for line in sys.stdin:
        path, folder, printed = json.loads(line)
        if not (child := os.fork()):
            os.chdir(folder)
            with Path(printed).open("wb") as file, Path(os.devnull).open("rb") as nothing:
                for number, stream in enumerate((nothing, file, file)):
                    os.dup2(stream.fileno(), number)
            return run_page(Path(path))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    return None


def run_page(path: Path) -> None:
    """Run the examples of a page in order; they share their names."""
    text = path.read_text(encoding="utf-8")
    names: dict[str, Any] = {"__name__": "example"}
    for block in BLOCK.finditer(text):
        code = block["code"]
        line = text[: block.start("code")].count("\n")
        if code.lstrip().startswith(">>>"):
            parser = doctest.DocTestParser()
            # Copied on the way in, handed back after: the next block goes on with these names.
            example = parser.get_doctest(code, names, path.name, str(path), line)
            check(example)
            names.update(example.globs)
        else:
            run_block(compile_at(code, path, line), names, block["printed"], f"{path.name}:{line}")


def test_no_line_is_taken_for_a_comment() -> None:
    """A line of prose that begins with a per cent sign is a comment for Sphinx, and would not be shown."""
    fence = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
    for path in PAGES:
        prose = fence.sub("", path.read_text(encoding="utf-8"))
        assert not re.search(r"^\s*%", prose, re.MULTILINE), path


def test_tests_that_a_page_names_are_there() -> None:
    there = {
        name
        for path in (ROOT / "tests").rglob("*.py")
        for name in re.findall(r"^def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    page = (ROOT / "docs/explanation/dmath-paper.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(test_\w+)`", page))
    assert named and named <= there, named - there


def test_pages_can_be_read_without_a_network() -> None:
    """Formulas of TeX would be drawn by a script from another host, in the built pages."""
    assert "dollarmath" not in (ROOT / "docs" / "conf.py").read_text(encoding="utf-8")
    formula = re.compile(r"\{math\}|^\$\$|:math:", re.MULTILINE)
    sources = [*PAGES, *(ROOT / "magmadnn").rglob("*.py")]
    assert [path for path in sources if formula.search(path.read_text(encoding="utf-8"))] == []


def test_files_that_a_page_names_are_there() -> None:
    files = [str(path.relative_to(ROOT)) for path in ROOT.rglob("*.py") if "/." not in str(path)]
    places = {"/".join(path.split("/")[k:]) for path in files for k in range(path.count("/"))}
    places |= {f"{place.rpartition('/')[0]}/" for place in places}
    missing = []
    for path in PAGES:
        if path.name == "CHANGELOG.md" or path.parent.name == "decisions":  # what was true then
            continue
        named = re.findall(r"`((?:\w+/)+\w+\.py|(?:\w+/){2,})`", path.read_text(encoding="utf-8"))
        missing += [f"{path.relative_to(ROOT)}: {name}" for name in named if name not in places]
    assert [name for name in missing if not name.endswith(NOT_THERE)] == []


@pytest.mark.parametrize("name", MODULES_WITH_EXAMPLES)
def test_docstrings(name: str) -> None:
    for example in doctest.DocTestFinder().find(importlib.import_module(name)):
        check(example)


PUBLIC_MODULES = {
    "magmadnn": "magmadnn",
    "magmadnn.data": "data",
    "magmadnn.errors": "errors",
    "magmadnn.graph": "graph",
    "magmadnn.layers": "layers",
    "magmadnn.comm": "comm",
    "magmadnn.workers": "workers",
    "magmadnn.parallel": "parallel",
    "magmadnn.linalg": "linalg",
    "magmadnn.losses": "losses",
    "magmadnn.memory": "memory",
    "magmadnn.metrics": "metrics",
    "magmadnn.models": "models",
    "magmadnn.ops": "ops",
    "magmadnn.optim": "optim",
    "magmadnn.search": "search",
    "magmadnn.tensor": "tensor",
    "magmadnn.training": "training",
    "magmadnn.workflow": "workflow",
}


@pytest.mark.parametrize(("module", "page"), PUBLIC_MODULES.items())
def test_every_public_name_is_in_the_reference(module: str, page: str) -> None:
    text = (ROOT / "docs/reference" / f"{page}.md").read_text(encoding="utf-8")
    if module == "magmadnn.optim":  # one module, two pages
        text += (ROOT / "docs/reference/schedules.md").read_text(encoding="utf-8")
    if re.search(rf"automodule:: {re.escape(module)}$(?!\n +:no-members:)", text, re.MULTILINE):
        return  # all of them
    names = importlib.import_module(module).__all__
    assert not [name for name in names if not re.search(rf"[:`.]{name}\b", text)]


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ("```python\n>>> x + 1\n4\n```\n", r"Expected:\s+4\s+Got:\s+3"),
        ("```python\nprint(x + 1)\n```\n\n```text\n4\n```\n", r"shows\n4\nbut it printed\n3\n"),
        ("```python\nprint('a  b')\n```\n\n```text\na b\n```\n", r"shows\na b\nbut .*\na  b\n"),
        ("```python\nprint(x)\n```\n\n```text\n```\n", r"shows\nbut it printed\n2\n"),
    ],
)
def test_a_wrong_example_is_found(tmp_path: Path, pages: Pages, block: str, message: str) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"```python\nx = 2\n```\n\n{block}", encoding="utf-8")
    with pytest.raises(pytest.fail.Exception, match=message):
        check_page(page, pages, tmp_path / "printed")


def test_dots_stand_for_anything_and_other_text_is_not_compared(
    tmp_path: Path, pages: Pages
) -> None:
    page = tmp_path / "page.md"
    shown = "```python\nprint('took 17 s')  \n```\n\n```text\ntook ... s\n```\n"
    page.write_text(f"{shown}\nProse.\n\n```text\nnot the output\n```\n", encoding="utf-8")
    check_page(page, pages, tmp_path / "printed")


if __name__ == "__main__":
    run_pages()
