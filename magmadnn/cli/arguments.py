"""Reading arguments: argparse, with one line for each mistake and the nearest known name."""

from __future__ import annotations

import argparse
import csv
import math
import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

from magmadnn.errors import ArgumentError, UnknownNameError
from magmadnn.runtime.threads import MOST, set_threads


class Parser(argparse.ArgumentParser):
    """A parser that raises ArgumentError, and that does not guess from the beginning of an option."""

    def __init__(self, command: str, description: str, epilog: str = "") -> None:
        super().__init__(
            prog=f"magmadnn {command}",
            description=description,
            epilog=epilog,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    def add_threads(self, to: Any = None) -> None:
        """Add `--threads N`, to a group of options where one is given; `read` obeys it."""
        about = "threads to compute on; results do not depend on it (default: one for each core)"
        (to or self).add_argument("--threads", type=whole(1, MOST), metavar="N", help=about)

    def add_reading(self, required: bool = True) -> None:
        """Add the options of commands that read data for a network that is trained."""
        self.add_argument("--data", metavar="DATA", required=required, help="as for magmadnn train")
        self.add_argument(
            "--missing",
            type=one_of("way", ("mean", "drop")),
            metavar="mean|drop",
            help="what to do with missing values (default: as in training)",
        )
        self.add_argument(
            "--decimal",
            type=one_of("decimal sign", (".", ",")),
            metavar=".|,",
            help="decimal sign of numbers in text (default: as in training)",
        )
        self.add_images()

    def add_images(self, to: Any = None, streams: bool = True) -> None:
        """Add the options of how files of images are read, to a group of options where one is given.

        `streams` says whether the command can read them batch by batch.
        """
        # here, as commands that read no data start in two thirds of the time without
        from magmadnn.data.images.folders import BAD_IMAGES
        from magmadnn.data.images.reading import DECODES

        group = to or self
        if streams:
            group.add_argument(
                "--decode",
                type=one_of("way", DECODES),
                metavar="memory|stream",
                help="decode images once and keep them, or each batch anew (default: by their memory)",
            )
        group.add_argument(
            "--loader-workers",
            type=whole(1, MOST),
            metavar="N",
            help="threads that decode images and change them at random; results do not depend on it",
        )
        group.add_argument(
            "--bad-images",
            type=one_of("way", BAD_IMAGES),
            metavar="error|skip",
            help="files of images that cannot be decoded are an error (default), or left out",
        )

    def error(self, message: str) -> NoReturn:
        """Raise ArgumentError.

        Raises:
            ArgumentError: always.
        """
        text = message.removeprefix("argument ")
        raise ArgumentError(f"{text}; see {self.prog} --help")

    def read(self, argv: Sequence[str]) -> argparse.Namespace:
        """The arguments.

        Raises:
            ArgumentError: naming the first that is wrong.
        """
        found, rest = self.parse_known_args(argv)
        if rest and rest[0].startswith("-"):
            options = [o for action in self._actions for o in action.option_strings]
            raise UnknownNameError.of("option", rest[0].split("=")[0], options)
        if rest:
            raise ArgumentError(f"{rest[0]!r} is one argument too many; see {self.prog} --help")
        if getattr(found, "threads", None) is not None:
            set_threads(found.threads)
        return found


def whole(least: int, most: int = 2**63 - 1) -> Callable[[str], int]:
    """Reads a whole number from `least` to `most`; files hold none that needs more than 64 bits."""

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if not least <= value <= most:
            words = f"from {least} to {most}" if value > most else f"of at least {least}"
            raise argparse.ArgumentTypeError(f"must be a whole number {words}, got {text!r}")
        return value

    return read


def number(words: str, allowed: Callable[[float], bool]) -> Callable[[str], float]:
    """Reads a finite number that is `allowed`, which `words` describe."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value) or not allowed(value):
            raise argparse.ArgumentTypeError(f"must be {words}, got {text!r}")
        return value

    return read


RATE = number("a number above 0", lambda value: value > 0)
AT_LEAST_0 = number("a number of at least 0", lambda value: value >= 0)
SHARE = number("a share above 0 and below 1", lambda value: 0 < value < 1)
SHARE_OR_0 = number("a share of at least 0 and below 1", lambda value: 0 <= value < 1)


def sizes(text: str) -> tuple[int, ...]:
    """Reads sizes of layers: `528,528,528`."""
    try:
        found = tuple(int(part) for part in text.split(","))
    except ValueError:
        found = ()
    if not found or min(found) < 1 or max(found) >= 2**63:
        raise argparse.ArgumentTypeError(
            f"must be whole numbers of at least 1 with commas between, such as 512,256, got {text!r}"
        )
    return found


def in_bytes(text: str) -> int:
    """Reads an amount of memory in bytes, or with a unit: `800000000`, `512MiB`, `1.5GB`."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(?:([KMGT])(i?)B|B)?", text.strip())
    power = 0 if found is None or found[2] is None else 1 + "KMGT".index(found[2])
    amount = 0.0 if found is None else float(found[1]) * (1024 if found[3] else 1000) ** power
    if not 1 <= amount < 2**63:
        raise argparse.ArgumentTypeError(
            f"must be at least 1 byte, such as 800000000, 512MiB or 1.5GB, got {text!r}"
        )
    return int(amount)


def columns(text: str) -> tuple[str, ...]:
    """Reads names or numbers of columns: `age,dose`; one with a comma in it stands in double quotes."""
    try:
        names = next(csv.reader([text], skipinitialspace=True), [])
    except csv.Error:  # such as a line feed
        names = []
    found = tuple(name.strip() for name in names)
    if not found or not all(found):
        raise argparse.ArgumentTypeError(
            f"must be names of columns with commas between, such as age,dose, got {text!r}"
        )
    return found


def as_typed(message: str) -> str:
    """A message whose ways out are arguments of Python's functions, with the options of a command."""
    message = re.sub(r'\b(missing|decimal)="([^"]+)"', r"--\1 \2", message)
    message = message.replace('bad_images="skip"', "--bad-images skip")
    message = re.sub(
        r"parallel=md\.parallel\..* or Pipeline\(\)", "--workers 2 --parallel auto", message
    )
    message = re.sub(r"\bbatch_size=(\d)", r"--batch-size \1", message)
    message = re.sub(r"\bmemory_limit\b=?", "--memory-limit ", message).replace("limit  ", "limit ")
    message = message.replace("image_size=64", "--image-size 64").replace(
        "image_size", "--image-size"
    )
    return re.sub(
        r"\b(ignore|categories)=\[([^\]]*)\]",
        lambda found: (
            f"--{found[1]} " + shlex.quote(re.sub(r"'([^',]*)'(, )?", r"\1,", found[2]).strip(","))
        ),
        message,
    )


def one_of(what: str, known: Iterable[str]) -> Callable[[str], str]:
    """Reads one of the `known` names of a `what`."""
    names = list(known)

    def read(text: str) -> str:
        if text not in names:
            raise argparse.ArgumentTypeError(str(UnknownNameError.of(what, text, names)))
        return text

    return read
