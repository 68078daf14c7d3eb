"""One module compiled in pieces, side by side, while the rest of it is still being written.

LLVM takes two thirds of the time of a first step and needs no interpreter; writing the text takes most of the
rest. So functions go to LLVM as soon as enough of them are written for a piece, each piece as a module of its
own with what it calls declared. No pass looks beyond one function: the code is that of one module.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from typing import Any

from llvmlite import ir

from magmadnn.backends.cpu.forks import ProcessLock
from magmadnn.compiler.collecting import uncollected
from magmadnn.compiler.llvm.ir.target import Target, object_code

from .library import joined

# Characters of text at least, but for the last piece: LLVM takes 4 ms for a module with hardly any code.
_PIECE = 40_000
_TURN = 2e-4  # seconds that a thread keeps the interpreter while others, back from LLVM, want it
_NAME = re.compile(r'@"([^"]+)"')

_one_at_a_time = ProcessLock()
_before: list[float] = []  # while a thread writes: how long turns were


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
        self._waiting: dict[str, str] = {}  # functions that make no piece yet
        self._begun: list[Future[bytes]] = []

    def hand_over(self, is_all: bool = False) -> None:
        """Begin to compile what was written, large functions first; what makes no piece waits for more.

        In the module declarations stay of it.
        """
        written = {f: f.blocks for f in self.module.functions if f.blocks}
        for function in written:
            function.blocks, function.linkage = [], ""  # other pieces call it
        for function in sorted(written, key=lambda f: -_instructions(written[f])):
            text = _taken(function, written.pop(function))
            if len(text) >= _PIECE:
                self._begin({function.name: text})
            else:
                self._waiting[function.name] = text
                self._begin_waiting(_PIECE)
        if is_all:
            self._begin_waiting(1)

    def _begin_waiting(self, least: int) -> None:
        """Compile what waits, if there is so much."""
        if sum(map(len, self._waiting.values())) >= least:
            self._begin(self._waiting)
            self._waiting = {}

    def _begin(self, texts: dict[str, str]) -> None:
        """Compile these functions as a module of their own."""
        body = "\n".join(texts.values())
        others = (x for x in dict.fromkeys(_NAME.findall(body)) if x not in texts)
        used = [str(self.module.globals[x]) for x in others]
        notes = map(str, self.module.metadata)  # what instructions are marked with
        text = "\n".join([f'target triple = "{self._target.triple}"', *used, body, *notes])
        self._begun.append(self._pool.submit(object_code, text, self._target))

    def code(self) -> bytes:
        """The object code of all pieces, joined; see `parts_of`."""
        return joined([one.result() for one in self._begun])


def _instructions(blocks: Sequence[Any]) -> int:
    return sum(len(block.instructions) for block in blocks)


def _taken(function: Any, blocks: list[Any]) -> str:
    """The text of a function, a declaration, that has these blocks.

    Blocks and what is in them refer to each other. They are given up by hand here, since to look for them
    as garbage later took 60 ms of a first step of the papers' network.
    """
    function.blocks = blocks
    text = str(function)
    function.blocks = []
    for block in blocks:
        for instruction in block.instructions:
            if isinstance(instruction, ir.PhiInstr):
                instruction.incomings.clear()
        block.instructions.clear()
        block.terminator = None
    return text


@contextmanager
def quick_turns() -> Iterator[None]:
    """While one thread writes text, others get the interpreter at once when LLVM gives a result back.

    They need it for moments, but would wait 5 ms for it each time. Nobody looks for garbage meanwhile: what
    is made is in use until the text is written.
    """
    with _one_at_a_time, uncollected():
        _before.append(sys.getswitchinterval())
        sys.setswitchinterval(_TURN)
        try:
            yield
        finally:
            _set_back()


def _set_back() -> None:
    """As it was before a thread began to write; also in a child that was forked meanwhile."""
    while _before:
        sys.setswitchinterval(_before.pop())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_set_back)
