"""magmadnn tune: which algorithms of a GPU's libraries were measured to be the fastest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from magmadnn.backends.cuda import device_count, device_engine
from magmadnn.errors import FileError

from .arguments import Parser, one_of

if TYPE_CHECKING:
    from magmadnn.runtime.cuda.measured import RecordsOf

_ABOUT = """\
On a GPU the library's algorithms for a large product or a convolution are measured, once for each of its
sizes, and the fastest is kept in a file for each kind of GPU. Algorithms differ in the last bits, so results
are equal as long as the file is there; what was chosen is in checkpoints too.

  show    print the file of each GPU, and for each product the time of the fastest
  clear   remove these files: products are measured again
"""
_NOTE = """\
Where MAGMADNN_TUNE_SECONDS is 0 nothing is measured, and nothing that was measured is used.
"""


def parser() -> Parser:
    """The arguments of the command."""
    made = Parser("tune", _ABOUT, _NOTE)
    actions = ("show", "clear")
    made.add_argument("action", metavar="show|clear", type=one_of("action", actions))
    return made


def run(argv: Sequence[str]) -> int:
    """Print or remove; returns the exit code.

    Raises:
        FileError: a file cannot be removed.
        ArgumentError: MAGMADNN_TUNE_SECONDS is not a number of at least 0.
    """
    action = parser().read(argv).action
    names = dict.fromkeys(device_engine(number).library for number in range(device_count()))
    if not names:
        print("no GPU is there: nothing is measured")
        return 0
    from magmadnn.runtime.cuda.algorithms import records_of
    from magmadnn.runtime.cuda.measured import may_measure

    if action == "clear":
        for name in names:
            _clear(records_of(name))
        return 0
    if not may_measure():
        print("MAGMADNN_TUNE_SECONDS is 0: nothing is measured, and this is not used")
    for name in names:
        _show(name, records_of(name))
    return 0


def _clear(records: RecordsOf) -> None:
    try:
        count = records.clear()
    except OSError as error:
        raise FileError(f"tune: cannot remove {records.path}: {error}") from error
    print(f"removed the measurements of {_counted(count)}: {records.path}")


def _show(device: str, records: RecordsOf) -> None:
    found = records.read()
    print(f"device    {device}")
    print(f"file      {records.path}")
    print(f"measured  {_counted(len(found))}")
    for key, record in sorted(found.items()):
        first, best = record.microseconds.get("0"), min(record.microseconds.values(), default=None)
        if first and best:
            print(
                f"  {key.removeprefix(f'{device}: ')}: {best:.1f} us, the first proposal {first:.1f}"
            )


def _counted(count: int) -> str:
    return "1 product" if count == 1 else f"{count} products"
