"""magmadnn tune: what was measured on this machine to choose how matrix products run."""

from __future__ import annotations

from collections.abc import Sequence

from magmadnn.compiler.emit.llvm.gemm_cuts import RULE
from magmadnn.compiler.emit.llvm.target import host
from magmadnn.compiler.tune import limit_seconds
from magmadnn.compiler.tune_file import Records, machine_words
from magmadnn.errors import FileError

from .arguments import Parser, one_of

_ABOUT = """\
Matrix products have several ways to cut their loops, which differ in speed and not in any bit of the result.
The first steps of a program measure them, for a tenth of a second at most, and keep what they find.

  show    print the file, and for each product the way that was chosen and its gain over the rule
  clear   remove the file: products are measured again
"""
_NOTE = """\
MAGMADNN_TUNE_SECONDS sets how long a process may measure; 0: never, and nothing that was measured is used.
"""


def parser() -> Parser:
    """The arguments of the command."""
    made = Parser("tune", _ABOUT, _NOTE)
    made.add_argument("action", metavar="show|clear", type=one_of("action", ("show", "clear")))
    return made


def run(argv: Sequence[str]) -> int:
    """Print or remove; returns the exit code.

    Raises:
        FileError: the file cannot be removed.
    """
    action = parser().read(argv).action
    records = Records(host())
    if action == "clear":
        try:
            count = records.clear()
        except OSError as error:
            raise FileError(f"tune: cannot remove {records.path}: {error}") from error
        print(f"removed the measurements of {_counted(count)}: {records.path}")
        return 0
    _show(records)
    return 0


def _show(records: Records) -> None:
    found = records.read()
    print(f"machine   {machine_words(host())}")
    print(f"file      {records.path}")
    print(f"limit     {limit_seconds():g} seconds for each process")
    print(f"measured  {_counted(len(found))}")
    width = max(map(len, found), default=0)
    for key, record in sorted(found.items()):
        rule, best = (record.microseconds.get(name) for name in (RULE, record.choice))
        times = f"{best:10.1f} us" if best else " " * 13
        gain = f", {1 - best / rule:.0%} less than by rule" if best and rule and best < rule else ""
        print(f"  {key.ljust(width)}{times}  {record.choice}{gain}")


def _counted(count: int) -> str:
    return "1 product" if count == 1 else f"{count} products"
