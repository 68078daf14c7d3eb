"""How messages spell what a search was told: as arguments of `run`, or as options of the command line."""

from __future__ import annotations

from typing import Any


class Spelling:
    """Arguments of `md.search.run`; the command line has a class of its own.

    Attributes:
        begin: of each message.
        begin_of_ranks: of those about a search on ranks of a job.
    """

    begin = "search: "
    begin_of_ranks = "search: "

    def told(self, name: str, value: Any = None) -> str:
        """An argument with a value, `trials=100`; without one what is to be completed, `trials=`."""
        return f"{name}={'' if value is None else repr(value)}"

    def named(self, name: str) -> str:
        """An argument without a value: `workers`."""
        return name

    def method(self, name: str) -> str:
        """The method that was chosen: `asha`."""
        return name

    def method_option(self, name: str, value: Any) -> str:
        """An option of the method, with its value."""
        return f"method_options: {name}={value!r}"

    def parameter(self, name: str) -> str:
        """A parameter of the space."""
        return f"space: {name}"

    def steps(self, name: str) -> str:
        """How a parameter gets values for a grid."""
        return "md.search.grid(start, stop, step=...) or md.search.choice([...])"


RUN = Spelling()
