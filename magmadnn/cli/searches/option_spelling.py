"""How messages spell what a search was told on the command line."""

from __future__ import annotations

from typing import Any

from magmadnn.search.objectives import Reaches
from magmadnn.search.spelling import Spelling


class OptionSpelling(Spelling):
    """Options of `magmadnn search`: `--trials 100`.

    Args:
        file: how messages name the file of the space.
    """

    begin = ""
    begin_of_ranks = "--mpi: "

    def __init__(self, file: str = "space.toml") -> None:
        self._file = file

    def told(self, name: str, value: Any = None) -> str:
        """An option, and its value where there is one."""
        if isinstance(value, Reaches):
            value = f"{value.metric}={value.value!r}"
        return f"--{name.replace('_', '-')}{'' if value is None else f' {value}'}"

    def named(self, name: str) -> str:
        """An option without a value."""
        return self.told(name)

    def method(self, name: str) -> str:
        """The method that was chosen."""
        return self.told("method", name)

    def method_option(self, name: str, value: Any) -> str:
        """An option of the method, with its value."""
        return self.told(name, value)

    def parameter(self, name: str) -> str:
        """A parameter of the space's file."""
        return f"--space {self._file}: {name}"

    def steps(self, name: str) -> str:
        """How a parameter gets values for a grid."""
        return f"{name} = {{start = 0.0, stop = 0.1, step = 0.02}} or {{choice = [...]}}"
