"""What can go wrong, as one tree.

Every error is a `MagmaDNNError` and also the built-in exception that a Python user would expect::

    MagmaDNNError
    ├── ShapeError            (ValueError)    shapes that do not fit: operation, axis, sizes
    ├── DTypeError            (TypeError)     an element type that an operation does not take
    ├── ArgumentError         (ValueError)    a value outside what an argument allows
    │   ├── UnknownNameError                  a name that is not known; says the nearest known one
    │   │   └── UnknownAttributeError (AttributeError) an attribute that is not there
    │   ├── CallError          (TypeError)    arguments that do not fit a call: unknown, missing, too many
    │   │   └── UnknownArgumentError          a name that is no argument's; an UnknownNameError too
    │   ├── FrozenError (dataclasses.FrozenInstanceError) a setting that stays as it was made is assigned
    │   └── IndexOutOfRangeError (IndexError) an index beyond the end of an axis or a memory
    ├── GraphError            (ValueError)    a graph that cannot be built or run as asked
    ├── DataError             (ValueError)    data that cannot be trained on: labels, NaN, columns, files
    ├── NumericError          (ArithmeticError) NaN or infinity appeared, or a matrix is singular
    ├── FileError             (OSError)       a file or folder that cannot be read or written
    │   └── CheckpointError                   a saved model or checkpoint that is damaged or foreign
    ├── DeviceError           (RuntimeError)  a device or memory kind that is not there
    │   └── OutOfMemoryError                  it is there, and full
    ├── CommunicationError    (RuntimeError)  workers' calls do not fit, or a worker is missing or has ended
    ├── WorkflowError         (RuntimeError)  a module of a workflow failed, or waits for what cannot come
    └── MissingExtraError     (ImportError)   an optional library that is not installed

A message is one line that names what, where, expected and got, and the way out. It may be followed by
lines with the formula and the shapes. On the command line each of these prints its message and exits
with code 2.
"""

from __future__ import annotations

import builtins
import reprlib
from collections.abc import Callable, Iterable
from dataclasses import FrozenInstanceError
from typing import Self

from magmadnn.hints import hint

_NAMES = 1000  # known names that a message lists, and that the nearest is looked for among
_NAME = 100  # letters of a name that is compared with others
_LISTED = 4000  # letters of the list


class _Short(reprlib.Repr):
    """Looks at a few parts of a value, in their own order."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxstring, self.maxother, self.maxlong = 4, 200, 200, 200

    def repr_int(self, x: int, level: int) -> str:
        """Integers of more digits than Python writes too."""
        return super().repr_int(x, level) if x.bit_length() < 10_000 else f"<{x.bit_length()} bits>"

    def repr_dict(self, x: dict[object, object], level: int) -> str:
        """The first fields; the base class would sort all names."""
        if level <= 0:
            return "{...}"
        inner = [f"{self.repr1(k, level - 1)}: {self.repr1(x[k], level - 1)}" for k in [*x][:4]]
        return "{" + ", ".join(inner) + (", ..." if len(x) > 4 else "") + "}"


_SHORT = _Short()


def shown(text: object, most: int = 1000) -> str:
    """A text from outside as a message shows it: in one line, printable, at most `most` characters.

    Names of files, cells of tables and fields of JSON may hold anything, a line feed or a million letters.
    """
    words = str(text)
    if len(words) > most:
        words = f"{words[: most // 2]}...{words[len(words) - most // 3 :]}"
    if words.isprintable():
        return words
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape").decode() for one in words
    )


def quoted(value: object, most: int = 80) -> str:
    """`repr(value)` as a message shows it; of a large list or object only the first parts are looked at."""
    if isinstance(value, dict | list | tuple | set | int):
        return shown(_SHORT.repr(value), most)
    return shown(repr(value), most)


def _plain(name: str) -> str:
    """A name without what other libraries write otherwise: ReLU is relu, CrossEntropy cross_entropy."""
    return name.replace("_", "").replace("-", "").lower()


class MagmaDNNError(Exception):
    """Base of every error that magmadnn raises on purpose."""


class ShapeError(MagmaDNNError, ValueError):
    """Shapes do not fit; the message names the operation, the axis and the sizes."""


class DTypeError(MagmaDNNError, TypeError):
    """An operation does not take this element type."""


class ArgumentError(MagmaDNNError, ValueError):
    """An argument's value is outside what is allowed."""


class UnknownNameError(ArgumentError):
    """A name is not known; the message gives the nearest known name."""

    @classmethod
    def of(cls, what: str, name: object, known: Iterable[str], way_out: str | None = None) -> Self:
        """The error for `name`, which should be one of `known`, the names of a `what`.

        The way out is a hint of its kind where there is one, else the nearest name.
        """
        names, text = sorted(known), str(name)
        way_out = way_out or hint([what.rpartition(": ")[2]], name, names)
        if way_out:
            return cls(f"{what} {shown(repr(name), _NAME)} is not known: {way_out}")
        import difflib  # rarely needed

        # To compare takes time that grows with both lengths, and names from files may be of any length.
        near_names = [n for n in names[:_NAMES] if len(n) <= _NAME] if len(text) <= _NAME else []
        begun = [n for n in near_names if len(text) > 1 and n.startswith(text)]
        same = [n for n in near_names if _plain(n) == _plain(text)]
        near = same or begun or difflib.get_close_matches(text, near_names, n=1, cutoff=0.5)
        meant = f"did you mean {near[0]!r}? " if near else ""
        listed = shown(", ".join(names[:_NAMES]), _LISTED)
        return cls(f"{what} {shown(repr(name), _NAME)} is not known: {meant}known are {listed}")


class UnknownAttributeError(UnknownNameError, AttributeError):
    """An attribute is not there; the message says what to write instead, where that is known.

    `hasattr` and many libraries only try whether it is there, so the message is made when it is shown.
    """

    def __init__(self, text: str, way_out: Callable[[], str | None] = lambda: None) -> None:
        super().__init__(text)
        self._way_out = way_out

    def __str__(self) -> str:
        text, way_out = str(self.args[0]), self._way_out()
        return f"{text}: {way_out}" if way_out else text


class CallError(ArgumentError, TypeError):
    """Arguments do not fit a call: one is unknown, missing, given twice, or there are too many."""


class UnknownArgumentError(CallError, UnknownNameError):
    """A call names an argument that there is not; the message says what to write instead."""


class FrozenError(ArgumentError, FrozenInstanceError):
    """A setting of something that stays as it was made is assigned."""


class IndexOutOfRangeError(ArgumentError, IndexError):
    """An index is beyond the end; the message names it, the axis and the size."""


class GraphError(MagmaDNNError, ValueError):
    """A graph cannot be built or run as asked, for instance because a placeholder was not fed."""


class DataError(MagmaDNNError, ValueError):
    """Data cannot be used: wrong labels, NaN, an empty set, a wrong column, a broken file."""


class NumericError(MagmaDNNError, ArithmeticError):
    """NaN or infinity appeared, naming what made it; or a matrix is singular or not positive definite."""


class FileError(MagmaDNNError, OSError):
    """A file or folder cannot be read or written."""


class CheckpointError(FileError):
    """A saved model or checkpoint is damaged, incomplete or not ours."""


class DeviceError(MagmaDNNError, RuntimeError):
    """A device or a kind of memory is not available; the message says why."""


class OutOfMemoryError(DeviceError, MemoryError):
    """There is not enough memory; the message says how much was asked for."""


class CommunicationError(MagmaDNNError, RuntimeError):
    """Workers make calls that do not fit, or one has ended; the message names ranks and lines."""


class WorkflowError(MagmaDNNError, RuntimeError):
    """A module of a workflow failed, or waits for what cannot come; the message says which and where."""


class MissingExtraError(MagmaDNNError, ImportError):
    """An optional library is not installed; the message gives the command that installs it."""

    @classmethod
    def of(cls, library: str, needed_for: str, extra: str) -> MissingExtraError:
        """The error for a missing `library` that comes with the extra `extra`."""
        return cls(f"{needed_for} needs {library}, which is not installed: {installing(extra)}")


def text_of(error: BaseException) -> str:
    """What an error was made with, for one of its class in another process."""
    return str(error.args[0]) if error.args and isinstance(error, MagmaDNNError) else str(error)


def error_like(name: str, text: str) -> BaseException:
    """An error of a class by its name, ours or Python's, as another process told of it.

    A `CommunicationError` that names the class, where it is one of the user's own or wants other arguments.
    """
    kind = globals().get(name) or getattr(builtins, name, None)
    if isinstance(kind, type) and issubclass(kind, BaseException):
        try:
            return kind(text)
        except TypeError:  # other arguments
            pass
    return CommunicationError(f"{text} ({name})")


def installing(*extras: str) -> str:
    """The commands that install one of these extras, for a clone of the repository and for a package."""
    clone = " or ".join(f'pip install -e ".[{extra}]"' for extra in extras)
    package = " or ".join(f'pip install "magmadnn[{extra}]"' for extra in extras)
    return f"{clone} in the clone, or {package}"
