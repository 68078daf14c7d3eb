"""magmadnn tune: what was measured on this machine to choose how matrix products run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from magmadnn.backends.cuda import device_count, device_engine
from magmadnn.compiler.kernels.gemm import Gemm
from magmadnn.compiler.llvm.gemm.cuts import RULE, tile_words
from magmadnn.compiler.llvm.gemm.gemm import tile_for
from magmadnn.compiler.llvm.ir.target import host
from magmadnn.compiler.tune.chosen_blocks import limit_seconds, search_all
from magmadnn.compiler.tune.file import Record, Records, RecordsOf, machine_words
from magmadnn.errors import FileError

from .arguments import RATE, Parser, one_of

_ABOUT = """\
Matrix products can run in several ways, which differ in speed and not in any bit of the result: the register
tile and the width of its vectors, the depth and height of blocks, what is copied and how much at a time. A
program tries some of them between its steps, from a second after the first ones on, for 3 % of its time, and
keeps what it finds. On a GPU the library's algorithms for large products are measured too, each once; these
do differ in the last bits, so that results are equal as long as the file is there.

  show    print the file, and for each product the way that was chosen and its gain over the rule
  run     try all ways of each product that a program has had on this machine's processor, and keep the best
  clear   remove the file: products are measured again
"""
_NOTE = """\
MAGMADNN_TUNE_SECONDS sets how long a program may measure; 0: never, and nothing that was measured is used.
"""
_SECONDS = 60.0


def parser() -> Parser:
    """The arguments of the command."""
    made = Parser("tune", _ABOUT, _NOTE)
    actions = ("show", "run", "clear")
    made.add_argument("action", metavar="show|run|clear", type=one_of("action", actions))
    made.add_argument(
        "--seconds",
        type=RATE,
        default=_SECONDS,
        metavar="S",
        help=f"how long run may take, about (default: {_SECONDS:g})",
    )
    return made


def run(argv: Sequence[str]) -> int:
    """Print, measure or remove; returns the exit code.

    Raises:
        FileError: the file cannot be removed.
    """
    arguments = parser().read(argv)
    records = Records(host())
    if arguments.action == "clear":
        for each in (records, *_of_devices().values()):
            _clear(each)
        return 0
    if arguments.action == "run":
        _search(records, arguments.seconds)
        return 0
    _show(records)
    for device, found in _of_devices().items():
        _show_device(device, found)
    return 0


def _search(records: Records, seconds: float) -> None:
    """Try all ways of all products."""
    count = len(records.read())
    print(f"trying the ways of {_counted(count)} for {seconds:g} seconds at most")
    for words, record in search_all(records, host(), seconds):
        found = "its share of the time does not suffice" if record is None else _chosen(record)
        print(f"  {words}  {found.strip()}", flush=True)


def _of_devices() -> dict[str, RecordsOf]:
    """The files of the GPUs that are there, one for each kind."""
    if not device_count():
        return {}
    from magmadnn.runtime.cuda.algorithms import records_of

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
    for dtype in ("float32", "float64"):
        item = np.dtype(dtype).itemsize
        print(f"by rule   {dtype}: {tile_words(tile_for(Gemm(dtype), host()), item)}")
    print(f"measured  {_counted(sum(bool(record.microseconds) for record in found.values()))}")
    width = max(map(len, found), default=0)
    for key, record in sorted(found.items()):
        print(f"  {key.ljust(width)}{_chosen(record)}")


def _chosen(record: Record) -> str:
    """What was chosen, its time, and what it gains."""
    if not record.microseconds:
        return "  not measured yet: magmadnn tune run" if record.choice == RULE else record.choice
    rule, best = (record.microseconds.get(name) for name in (RULE, record.choice))
    times = f"{best:10.1f} us" if best else " " * 13
    gain = f", {1 - best / rule:.0%} less than by rule" if best and rule and best < rule else ""
    return f"{times}  {record.choice}{gain}"


def _counted(count: int) -> str:
    return "1 product" if count == 1 else f"{count} products"
