"""magmadnn tune: what was measured on this machine to choose how matrix products run."""

from __future__ import annotations

from collections.abc import Sequence

from magmadnn.backends.cuda import device_count, device_engine
from magmadnn.compiler.emit.llvm.gemm_cuts import RULE
from magmadnn.compiler.emit.llvm.target import host
from magmadnn.compiler.tune import limit_seconds
from magmadnn.compiler.tune_file import Records, RecordsOf, machine_words
from magmadnn.errors import FileError

from .arguments import Parser, one_of

_ABOUT = """\
Matrix products have several ways to cut their loops, which differ in speed and not in any bit of the result.
The first steps of a program measure them, for a tenth of a second at most, and keep what they find. On a
GPU the library's algorithms for large products are measured too, each once; these do differ in the last bits,
so that results are equal as long as the file is there.

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
        for each in (records, *_of_devices().values()):
            _clear(each)
        return 0
    _show(records)
    for device, found in _of_devices().items():
        _show_device(device, found)
    return 0


def _of_devices() -> dict[str, RecordsOf]:
    """The files of the GPUs that are there, one for each kind."""
    if not device_count():
        return {}
    from magmadnn.executor.cuda.algorithms import records_of

    names = dict.fromkeys(device_engine(number).library for number in range(device_count()))
    return {name: records_of(name) for name in names}


def _clear(records: RecordsOf) -> None:
    try:
        count = records.clear()
    except OSError as error:
        raise FileError(f"tune: cannot remove {records.path}: {error}") from error
    print(f"removed the measurements of {_counted(count)}: {records.path}")


def _show_device(device: str, records: RecordsOf) -> None:
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
