"""Folders of JPEG and PNG files, with a folder for each class, under `train` and `test` or without these."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from magmadnn.calls import checked_call
from magmadnn.data._find import list_folder
from magmadnn.data.images.decoding import Made, is_image_name, need_pillow
from magmadnn.data.images.reading import (
    DECODES,
    Decode,
    Looked,
    decode_all,
    images_on_demand,
    is_streamed,
    look_at_all,
    scaled,
)
from magmadnn.errors import (
    ArgumentError,
    DataError,
    MagmaDNNError,
    UnknownNameError,
    quoted,
    shown,
)
from magmadnn.memory.on_demand import OnDemand
from magmadnn.runtime.threads import MOST
from magmadnn.storage.input_files import check_room, input_path, reading

BadImages = Literal["error", "skip"]
BAD_IMAGES = ("error", "skip")
_TESTS = ("test", "val")  # the first that is there is the test set
_SMALLER = 'decode them batch by batch with decode="stream", or give a smaller image_size'
_LISTED = 5  # files that a message names
MOST_SIZE = 4096  # pixels on a side that images may be made to have


@dataclass(frozen=True)
class ImageOptions:
    """How files of images are read.

    Attributes:
        size: pixels on each side that images are scaled to; None: as they are, all of one size.
        workers: threads that decode; None: as many as compiled programs run on.
        bad_images: "error": files that cannot be decoded are an error; "skip": they are left out.
        decode: "memory": all at once; "stream": each batch when it is asked for; None: by what they need.
        grey: whether they become grey, with one channel, in place of RGB.
    """

    size: int | None = None
    workers: int | None = None
    bad_images: BadImages = "error"
    decode: Decode | None = None
    grey: bool = False

    def __post_init__(self) -> None:
        for name, value, most in (
            ("image_size", self.size, MOST_SIZE),
            ("loader_workers", self.workers, MOST),
        ):
            whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
            if value is not None and not (whole and 1 <= value <= most):
                raise ArgumentError(
                    f"{name} must be a whole number from 1 to {most}, got {value!r}"
                )
        if self.bad_images not in BAD_IMAGES:
            raise UnknownNameError.of("bad_images", self.bad_images, BAD_IMAGES)
        if self.decode is not None and self.decode not in DECODES:
            raise UnknownNameError.of("decode", self.decode, DECODES)

    @property
    def made(self) -> Made:
        """What is made of each image."""
        return Made(self.size, self.grey)


@dataclass(frozen=True, eq=False)
class Images:
    """Images of one size with their labels.

    Attributes:
        x: float32 in 0..1, [rows, height, width, 3], or with one channel where they become grey; or rows on
            demand (`OnDemand`), decoded when they are asked for: `x[rows]`.
        y: number of each one's class among `classes`, int64.
        paths: of the files, in the order of the rows.
        skipped: a line for each file that was left out.
    """

    x: NDArray[np.float32] | OnDemand
    y: NDArray[np.int64]
    paths: tuple[Path, ...]
    skipped: tuple[str, ...] = ()

    def __repr__(self) -> str:
        sizes = " x ".join(str(n) for n in self.x.shape[1:])
        left_out = f", {len(self.skipped):,} left out" if self.skipped else ""
        return f"<Images: {len(self.y):,} of {sizes}{left_out}>"


@dataclass(frozen=True, eq=False)
class ImageFolder:
    """What a folder of images holds.

    Attributes:
        classes: names of the class folders, sorted, or those that were given; a label is the place among
            them.
        train: all images, or those under `train`.
        test: those under `test` or `val`; None without such a folder.
    """

    classes: tuple[str, ...]
    train: Images
    test: Images | None

    def __repr__(self) -> str:
        return f"<ImageFolder of {len(self.classes)} classes: train {self.train}, test {self.test}>"


@checked_call
def image_folder(
    folder: str | os.PathLike[str],
    *,
    image_size: int | None = None,
    loader_workers: int | None = None,
    bad_images: BadImages = "error",
    decode: Decode | None = None,
    classes: Sequence[str] | None = None,
) -> ImageFolder:
    """The images in a folder that has a folder for each class, named after it.

    The class folders stand in `train` and `test`; `val` is the test set where there is no `test`. Where there
    is no `train`, they stand in the folder itself, and all images are training images. Files are JPEG (.jpg,
    .jpeg) and PNG; hidden files are passed over. Rows are in the order of classes, then of file names.

    Every image becomes RGB, turned as its EXIF data says; see `image_size` for its size. It takes
    12 * height * width bytes, unless images are decoded batch by batch.

    Args:
        folder: where they are.
        image_size: scales each image, by the mean over the area of a triangle filter, until its shorter side
            has so many pixels, and keeps the middle square; None: all images have one size already.
        loader_workers: threads that decode; None: as many as compiled programs run on (`md.set_threads`).
            Results do not depend on it.
        bad_images: "error" refuses files that are damaged, cut short or of another kind than their names say,
            naming them all; "skip" leaves them out and lists them in `skipped`.
        decode: "memory": all images are decoded at once and kept; "stream": all are decoded once, to look at
            them, and then whenever a batch needs them, so that memory does not grow with their number; None:
            as a stream where they need more than half of the memory that is available, 27 * height * width
            bytes each with their copy as a network takes it. Values and order are the same.
        classes: names of the classes in the order of their labels, such as `classes` of the training images
            for a folder of test images, which may hold some of them only: labels are numbers of the class
            folders that are there otherwise. None: the class folders, sorted.

    Raises:
        ArgumentError: `classes` are no list of two different names or more.
        DataError: no or one class; a class without images; a class under `test` that is not under `train`,
            or none of `classes`; images of several sizes without `image_size`; a file that is no image, or
            cannot be decoded.
        FileError: a file or folder cannot be read.
        MissingExtraError: Pillow is not installed.
    """
    place = input_path("image_folder: the folder", folder)
    options = ImageOptions(image_size, loader_workers, bad_images, decode)
    return read_image_folder(place, options, None if classes is None else _checked(classes))


def _checked(classes: Any) -> tuple[str, ...]:
    """Names of classes that somebody gave.

    Raises:
        ArgumentError: they are something else.
    """
    names = tuple(classes) if isinstance(classes, Sequence) and not isinstance(classes, str) else ()
    if len(names) < 2 or len(set(names)) < len(names) or not all(isinstance(n, str) for n in names):
        raise ArgumentError(
            f"image_folder: classes must be a list of two different names or more, got {quoted(classes)}"
        )
    return names


def read_image_folder(
    place: Path, options: ImageOptions, known: tuple[str, ...] | None = None
) -> ImageFolder:
    """As `image_folder`; `known` are the classes in the order of their labels."""
    need_pillow("reading images")
    top, below = _parts(place)
    if top == place and below is not None:
        raise DataError(
            f"{shown(place)}: holds {below.name} but no train: put the class folders of training images into "
            "a folder train beside it"
        )
    found = _classes(top, least=2 if known is None else 1)
    if top != place and below is None:
        _check_no_other_set(place, found)
    classes = found if known is None else known
    if unknown := [name for name in found if name not in classes]:
        raise DataError(
            f"{shown(top)}: the class {shown(unknown[0])!r} is none of the classes that were given "
            f"({shown(', '.join(classes), 200)}): rename its folder, or remove it"
        )
    train = _images(top, classes, _files(top, found, classes), options, None)
    if below is None:
        return ImageFolder(classes, train, None)
    here = _class_folders(below)
    if unknown := [name for name in here if name not in classes]:
        raise DataError(
            f"{shown(below)}: the class {shown(unknown[0])!r} is not among those of {shown(top)}: remove its "
            "folder, or train on it too"
        )
    height, width = train.x.shape[1:3]
    test = _images(below, classes, _files(below, here, classes), options, (height, width))
    return ImageFolder(classes, train, test)


def read_test_images(place: Path, options: ImageOptions) -> tuple[tuple[str, ...], Images, bool]:
    """Classes and images of the test set, and True; or, where there is none, all of them, and False.

    There may be a test set only, and one class.

    Raises:
        As `image_folder`.
    """
    need_pillow("reading images")
    top, below = _parts(place)
    chosen = below or top
    classes = _classes(chosen, least=1)
    if top != place and below is None:
        _check_no_other_set(place, classes)
    images = _images(chosen, classes, _files(chosen, classes, classes), options, None)
    return classes, images, below is not None


def _parts(place: Path) -> tuple[Path, Path | None]:
    """Where the class folders of training images stand, and those of test images, if there are any.

    Without `train` the class folders stand in the folder itself, unless they do in `test` or `val`.
    """
    test = next((place / n for n in _TESTS if _has_folder(place, n)), None)
    if _has_folder(place, "train"):
        return place / "train", test
    return place, test if test is not None and _class_folders(test) else None


def _check_no_other_set(place: Path, classes: Sequence[str]) -> None:
    """Refuse a folder beside `train` that holds its classes, such as `Test` or `valid`: it was not read."""
    for name in _class_folders(place):
        if name != "train" and not set(classes).isdisjoint(_class_folders(place / name)):
            raise DataError(
                f"{shown(place)}: holds the classes of train in {shown(name)} too, which is neither called "
                "test nor val: rename it, or, to test with a share of train, move it away"
            )


def _classes(top: Path, least: int = 2) -> tuple[str, ...]:
    classes = _class_folders(top)
    if len(classes) < least:
        found = f"one class, {shown(classes[0])!r}" if classes else "no class folders"
        raise DataError(
            f"{shown(top)}: holds {found}: expected a folder of images for each of two classes or more"
        )
    return classes


def unread_folder(place: Path) -> Path | None:
    """The folder `val`, where it stands beside `train` and `test` and so is not read."""
    unread = all(_has_folder(place, name) for name in ("train", *_TESTS))
    return place / "val" if unread else None


def read_image_files(paths: Sequence[Path], options: ImageOptions) -> Images:
    """These files, labelled 0.

    Raises:
        As `image_folder`.
    """
    need_pillow("reading images")
    return _images(paths[0].parent, (), [(path, 0) for path in paths], options, None)


def has_class_folders(place: Path, *, for_trained: bool = False) -> bool:
    """Whether there are folders of images in a folder, or in its `train`; for a trained model, or `test`."""
    top, below = _parts(place)
    if top != place or (below is not None and for_trained):
        return True
    return any(_image_names(top / name) for name in _class_folders(top))


def inner_class_folders(place: Path) -> Path | None:
    """The first folder in a folder that holds folders of images itself."""
    inner = (place / name for name in _class_folders(place))
    return next((one for one in inner if has_class_folders(one)), None)


def image_files(place: Path) -> list[Path]:
    """The images that stand in a folder itself, by name."""
    return [place / name for name in _image_names(place)]


def _has_folder(place: Path, name: str) -> bool:
    with reading(place / name):
        return (place / name).is_dir()


def _class_folders(place: Path) -> tuple[str, ...]:
    names = (name for name in list_folder(place) if not name.startswith("."))
    return tuple(name for name in names if (place / name).is_dir())


def _image_names(place: Path) -> list[str]:
    return [n for n in list_folder(place) if not n.startswith(".") and is_image_name(place / n)]


def _files(top: Path, here: Sequence[str], classes: Sequence[str]) -> list[tuple[Path, int]]:
    """Files of the classes that are here, each with the number of its class among all."""
    found: list[tuple[Path, int]] = []
    for name in here:
        place = top / name
        others = [n for n in list_folder(place) if not n.startswith(".")]
        names = [n for n in others if is_image_name(place / n)]
        if wrong := [n for n in others if n not in set(names)]:
            raise DataError(
                f"{shown(place / wrong[0])}: expected only JPEG and PNG files (.jpg, .jpeg, .png) in a class "
                f"folder, and {len(wrong)} of {len(others)} are something else: move them away"
            )
        if not names:
            raise DataError(f"{shown(place)}: this class has no images: add some, or remove it")
        found += [(place / n, classes.index(name)) for n in names]
    return found


def _images(
    top: Path,
    classes: Sequence[str],
    files: Sequence[tuple[Path, int]],
    options: ImageOptions,
    expected: tuple[int, int] | None,
) -> Images:
    """The files decoded, which are all of one size; that which is expected, if one is."""
    paths = [path for path, _ in files]
    streams = _streams(top, paths, options)
    read = look_at_all if streams else decode_all
    found: list[Any] = list(read(paths, options.made, options.workers))
    bad = [k for k, one in enumerate(found) if isinstance(one, str)]
    words = tuple(f"{shown(paths[k])}: {found[k]}" for k in bad)
    if bad and options.bad_images == "error":
        raise _refused(top, words, len(files))
    good = [k for k in range(len(files)) if k not in set(bad)]
    for number, name in enumerate(classes):
        if {k for k in bad if files[k][1] == number} and not any(
            files[k][1] == number for k in good
        ):
            raise DataError(f"{shown(top / name)}: none of its images can be decoded: {words[0]}")
    if not good:
        raise DataError(f"{shown(top)}: none of its images can be decoded: {words[0]}")
    kept, decoded = [paths[k] for k in good], [found[k] for k in good]
    _check_sizes(kept, [one.shape for one in decoded], expected)
    x: NDArray[np.float32] | OnDemand
    if streams:
        x = images_on_demand(kept, decoded, options.made, options.workers)
    else:
        x = np.empty((len(kept), *decoded[0].shape), np.float32)
        for row, pixels in enumerate(decoded):
            x[row] = scaled(pixels)
    y = np.array([files[k][1] for k in good], np.int64)
    return Images(x, y, tuple(kept), words)


def _streams(top: Path, paths: Sequence[Path], options: ImageOptions) -> bool:
    """Whether files are decoded batch by batch; in memory there has to be room for them."""
    if options.size is not None:
        height = width = options.size
    else:
        one = partial(look_at_all, made=Made(), workers=1)
        first = next((f for path in paths if isinstance(f := one([path])[0], Looked)), None)
        if first is None:
            return False  # none can be decoded
        height, width = first.shape[:2]
    if is_streamed(options.decode, len(paths), height, width):
        return True
    check_room(top, 15 * height * width * len(paths), _SMALLER)  # as bytes, and as float32
    return False


def _refused(top: Path, words: Sequence[str], files: int) -> MagmaDNNError:
    more = f"; and {len(words) - _LISTED} more" if len(words) > _LISTED else ""
    return DataError(
        f"{shown(top)}: {len(words)} of {files} images cannot be decoded: "
        f"{'; '.join(words[:_LISTED])}{more}: "
        'repair or remove them, or leave them out with bad_images="skip"'
    )


def _check_sizes(
    paths: Sequence[Path],
    shapes: Sequence[tuple[int, ...]],
    expected: tuple[int, int] | None,
) -> None:
    first = shapes[0][:2] if expected is None else expected
    for path, shape in zip(paths, shapes, strict=True):
        if shape[:2] != first:
            whose = f"{shown(paths[0])} has" if expected is None else "training images have"
            raise DataError(
                f"{shown(path)}: has {shape[1]} x {shape[0]} pixels, but {whose} "
                f"{first[1]} x {first[0]}: give image_size=64, say, to scale all to one size"
            )
