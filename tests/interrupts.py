"""Interrupts at each place where Python may raise KeyboardInterrupt in a file."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any


def interrupted_everywhere(function: Callable[[], object], *files: str) -> Iterator[int]:
    """Call a function again and again, each time with a KeyboardInterrupt one place later in these files.

    Signals are looked at where a function of Python begins, and behind calls. Gives the number of each place.
    """
    place = 0
    while True:
        if not _interrupted(function, place, files):
            return
        yield place
        place += 1


def _interrupted(function: Callable[[], object], place: int, files: tuple[str, ...]) -> bool:
    left = place

    def look(frame: FrameType, event: str, _: Any) -> None:
        nonlocal left
        if event in ("call", "return", "c_return") and frame.f_code.co_filename in files:
            left -= 1
            if left < 0:
                sys.setprofile(None)
                raise KeyboardInterrupt

    before = sys.getprofile()
    sys.setprofile(look)
    try:
        function()
    except KeyboardInterrupt:
        return True
    finally:
        sys.setprofile(before)
    return False
