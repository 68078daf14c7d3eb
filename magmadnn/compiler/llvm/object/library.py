"""Object code loaded into this process, so that it can be called.

Instructions reach 2 GB from where they lie (ARM: 128 MB), and in a process with much memory mapped the
system may put any two mappings further apart. So all sections of an object file lie in one mapping, and it
calls what lies elsewhere through a table of whole addresses. LLVM's JITLink does both. Its older loader maps
sections one by one, counts on them being close, and aborts the process where they are not.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import llvmlite.binding as llvm

from magmadnn.compiler.llvm.ir.target import host, machine
from magmadnn.errors import DeviceError

_LENGTH = 8  # bytes of a number
_numbers = itertools.count()  # no two libraries of a linker have the same name


class Library:
    """Object code loaded into this process; its addresses live as long as the library does.

    Args:
        codes: object files, which may call each other's functions, and those of the process.
        symbols: functions whose addresses will be asked for.

    Raises:
        DeviceError: a symbol is not there, or the code cannot be loaded.
    """

    def __init__(self, codes: Iterable[bytes], symbols: Iterable[str]) -> None:
        files = llvm.JITLibraryBuilder().add_current_process()
        for code in codes:
            files.add_object_img(code)
        for symbol in symbols:
            files.export_symbol(symbol)
        try:
            self._loaded = files.link(_linker(), f"library {next(_numbers)}")
        except RuntimeError as error:
            raise DeviceError(f"LLVM cannot load the object code: {error}") from error

    def address(self, symbol: str) -> int:
        """Address of the function `symbol`."""
        return int(self._loaded[symbol])


@functools.cache
def _linker() -> Any:
    """What loads all libraries of this process."""
    return llvm.create_lljit_compiler(machine(host()), use_jit_link=True)


def joined(codes: Sequence[bytes]) -> bytes:
    """Several pieces of object code as one."""
    return b"".join(len(code).to_bytes(_LENGTH, "little") + code for code in codes)


def parts_of(code: bytes) -> list[bytes]:
    """What was joined."""
    found, at = [], 0
    while at < len(code):
        start = at + _LENGTH
        at = start + int.from_bytes(code[at:start], "little")
        found.append(code[start:at])
    return found
