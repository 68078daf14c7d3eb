"""One module compiled in pieces, side by side, while the rest of it is still being written.

LLVM takes two thirds of the time of a first step and needs no interpreter; writing the text takes most of the
rest. So functions go to LLVM as soon as a kernel is written, a few at a time, each piece as a module of its
own with what it calls declared. No pass looks beyond one function: the code is that of one module.
"""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from typing import Any

from llvmlite import ir

from .target import Target, object_code

_PIECE = 40_000  # characters of text at least, but for the last ones of a kernel
_TURN = 2e-4  # seconds that a thread keeps the interpreter while others, back from LLVM, want it
_LENGTH = 8  # bytes of a number
_NAME = re.compile(r'@"([^"]+)"')

_one_at_a_time = threading.Lock()


class Pieces:
    """Compiles what is written into `module`.

    Args:
        name: of the module.
        target: the machine.
        pool: whose threads run LLVM.
    """

    def __init__(self, name: str, target: Target, pool: Executor) -> None:
        self.module = ir.Module(name)
        self.module.triple = target.triple
        self._target, self._pool = target, pool
        self._declared: dict[str, str] = {}  # functions that were handed over
        self._begun: list[Future[bytes]] = []

    def hand_over(self) -> None:
        """Begin to compile the functions that were written since the last call, large ones first."""
        texts = {}
        for function in self.module.functions:
            if function.blocks and function.name not in self._declared:
                text = str(function).replace(" internal ", " ", 1)
                head, _, _ = text.partition("\n")
                self._declared[function.name] = head.replace("define", "declare", 1)
                texts[function.name] = text
        piece: list[str] = []
        for name in sorted(texts, key=lambda name: -len(texts[name])):
            piece.append(name)
            if sum(len(texts[x]) for x in piece) >= _PIECE:
                self._begin({x: texts[x] for x in piece})
                piece = []
        if piece:
            self._begin({x: texts[x] for x in piece})

    def _begin(self, texts: dict[str, str]) -> None:
        """Compile these functions as a module of their own."""
        body = "\n".join(texts.values())
        others = (x for x in dict.fromkeys(_NAME.findall(body)) if x not in texts)
        used = [self._declared.get(x) or str(self.module.globals[x]) for x in others]
        notes = map(str, self.module.metadata)  # what instructions are marked with
        text = "\n".join([f'target triple = "{self._target.triple}"', *used, body, *notes])
        self._begun.append(self._pool.submit(object_code, text, self._target))

    def code(self) -> bytes:
        """The object code of all pieces, joined; see `parts_of`."""
        return joined([one.result() for one in self._begun])


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


@contextmanager
def quick_turns() -> Iterator[None]:
    """While one thread writes text, others get the interpreter at once when LLVM gives a result back.

    They need it for moments, but would wait 5 ms for it each time.
    """
    with _one_at_a_time:
        before: Any = sys.getswitchinterval()
        sys.setswitchinterval(_TURN)
        try:
            yield
        finally:
            sys.setswitchinterval(before)
