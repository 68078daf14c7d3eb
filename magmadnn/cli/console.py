"""What commands print, unless they are to be quiet."""

from __future__ import annotations


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
