"""What commands print, unless they are to be quiet."""

from __future__ import annotations

import sys
from typing import Any


class Console:
    """Prints lines at once, or nothing.

    Args:
        quiet: whether to print nothing.
    """

    def __init__(self, quiet: bool = False) -> None:
        self.quiet = quiet

    def __call__(self, text: str = "") -> None:
        """Print a line."""
        if not self.quiet:
            print(text, flush=True)


def version() -> str:
    """The version of magmadnn, which is loaded by now: nothing here imports from so far above."""
    package: Any = sys.modules[__name__.partition(".")[0]]
    return str(package.__version__)
