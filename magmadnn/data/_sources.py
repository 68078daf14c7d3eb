"""From the text that names data to its arrays: which format it is, and what that gives."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from magmadnn.data._find import PACKED, list_folder
from magmadnn.data.hdf5 import ENDINGS as HDF5_ENDINGS
from magmadnn.data.hdf5 import read_hdf5
from magmadnn.data.images.cifar import (
    cifar10,
    cifar10_classes,
    cifar100,
    cifar100_classes,
    has_cifar10_files,
    has_cifar100_files,
)
from magmadnn.data.images.decoding import is_image_name
from magmadnn.data.images.folders import (
    ImageOptions,
    Images,
    has_class_folders,
    image_files,
    inner_class_folders,
    read_image_files,
    read_image_folder,
    read_test_images,
    unread_folder,
)
from magmadnn.data.images.idx import has_idx_files, idx_folder, mnist
from magmadnn.data.npz import NamedArrays, read_npz
from magmadnn.data.preparation.targets import Task, one_hot_to_numbers
from magmadnn.data.tables.reading import Missing, Table
from magmadnn.data.validation import check_finite
from magmadnn.errors import ArgumentError, DataError, FileError, quoted, shown
from magmadnn.memory.on_demand import OnDemand
from magmadnn.storage.input_files import input_path, reading

Array = NDArray[Any]

TEXT_ENDINGS = (".csv", ".tsv", ".data", ".dat", ".txt")

_KNOWN = (
    "mnist, a folder with IDX files, CIFAR batches or images, a table "
    f"({', '.join(TEXT_ENDINGS)}) or an .npz or .h5 file"
)
_WORDS = {"\t": "tabs", " ": "white space"}
_SHOWN = 5  # names that a message lists
_LISTED = 1000  # names that one that is not there is compared with


@dataclass(frozen=True, eq=False)
class Source:
    """What a format gave, before it is split and prepared.

    Attributes:
        format: in words.
        x: inputs [rows, ...], NaN where a value is missing and may be.
        y: targets as they were read, or None.
        x_test: of a test set of its own, or None.
        y_test: likewise.
        task: where the format itself says so.
        classes: names in the order of their numbers, where the format has them.
        table: the table it is from.
        image_size: pixels on each side that images were scaled to, if they were.
        files: of images, the path of each row of x.
        test_files: likewise, of x_test.
        skipped: a line for each file of an image that was left out.
        unread: the folder of images that was not read, since there is another test set.
    """

    format: str
    x: Array
    y: Array | None
    x_test: Array | None = None
    y_test: Array | None = None
    task: Task | None = None
    classes: tuple[str, ...] | None = None
    table: Table | None = None
    image_size: int | None = None
    files: tuple[str, ...] | None = None
    test_files: tuple[str, ...] | None = None
    skipped: tuple[str, ...] = ()
    unread: Path | None = None


def open_source(
    spec: str,
    read_text: Callable[[Path], Table],
    missing: Missing | None,
    *,
    with_target: bool = True,
    images: ImageOptions | None = None,
    for_trained: bool = False,
) -> Source:
    """Reads what `spec` names; `read_text` reads a table.

    Args:
        spec: see `load`.
        read_text: reads a table.
        missing: see `load`.
        with_target: whether targets are needed.
        images: how files of images are read.
        for_trained: whether it is for a model that is trained already: of a folder of images with a test set
            only that is read, and images without classes are taken.

    Raises:
        FileError: there is no such file or folder, or it cannot be read.
        DataError: its kind is not known, or its content cannot be used.
    """
    options = images or ImageOptions()
    if spec == "mnist":
        if options.size is not None and not for_trained:
            raise ArgumentError("mnist: image_size scales JPEG and PNG files: leave it out")
        return _images("MNIST", *mnist())
    path = input_path("data", spec)
    with reading(path):
        is_there, is_folder = path.exists(), path.is_dir()
    if not is_there:
        raise _not_found(spec, path)
    if is_folder:
        found = _folder(path, options, for_trained)
    elif for_trained and is_image_name(path):
        found = _bare_images([path], options)
    else:
        found = _file(path, read_text, missing, with_target, options)
    if options.size is not None and found.files is None and not for_trained:
        raise ArgumentError(
            f"{shown(path)}: image_size scales JPEG and PNG files, and this is other data: leave it out"
        )
    return found


def _file(
    path: Path,
    read_text: Callable[[Path], Table],
    missing: Missing | None,
    with_target: bool,
    options: ImageOptions,
) -> Source:
    if path.suffix.lower() == ".npz":
        return _named_arrays(path, read_npz(path, with_target=with_target), missing, ".npz arrays")
    if path.suffix.lower() in HDF5_ENDINGS:
        arrays = read_hdf5(path, with_target=with_target, decode=options.decode)
        streamed = isinstance(arrays.x, OnDemand)
        words = "HDF5 arrays" + (", read batch by batch" if streamed else "")
        return _named_arrays(path, arrays, missing, words)
    if not is_text_name(path):
        raise DataError(
            f"{shown(path)}: its kind {quoted(path.suffix)} is not known: expected {_KNOWN}"
        )
    return table_source(read_text(path))


def is_text_name(path: Path) -> bool:
    """Whether a file is named like a table in text, plain or packed."""
    plain = path.with_suffix("") if path.suffix.lower() in PACKED[1:] else path
    return plain.suffix.lower() in TEXT_ENDINGS


def table_source(table: Table) -> Source:
    """A table as a source."""
    return Source(_table_format(table), table.x, table.target, table=table)


def _not_found(spec: str, path: Path) -> FileError:
    beside = list_folder(path.parent) if path.parent.is_dir() else []
    near = difflib.get_close_matches(path.name, ["mnist", *beside[:_LISTED]], n=1, cutoff=0.6)
    hint = ""
    if near:
        known = near[0] if near[0] == "mnist" else str(path.with_name(near[0]))
        hint = f"did you mean {quoted(known, 1000)}? "
    return FileError(f"data {quoted(spec, 1000)} is not there: {hint}expected {_KNOWN}")


def _folder(path: Path, options: ImageOptions, for_trained: bool) -> Source:
    names = list_folder(path)
    if has_idx_files(path):
        return _images("IDX images", *idx_folder(path))
    if has_cifar10_files(path):
        return _named("CIFAR-10 batches", *cifar10(path), cifar10_classes(path))
    if has_cifar100_files(path):
        return _named("CIFAR-100 files", *cifar100(path), cifar100_classes(path))
    if has_class_folders(path, for_trained=for_trained):
        return _class_folders(path, options, for_trained)
    if for_trained and (files := image_files(path)):
        return _bare_images(files, options)
    if (inner := inner_class_folders(path)) is not None:
        raise DataError(
            f"{shown(path)}: class folders stand in its folder {shown(inner.name)}: give {shown(inner)}, or "
            "call it train (and that of a test set test)"
        )
    found = shown(", ".join(names[:_SHOWN])) + (", ..." if len(names) > _SHOWN else "")
    raise DataError(
        f"{shown(path)}: holds neither IDX files (train-images-idx3-ubyte, ...) nor CIFAR batches "
        "(data_batch_1.bin, ...) nor a folder of images for each class: found "
        f"{found or 'an empty folder'}"
    )


def _images(name: str, train: tuple[Array, Array], test: tuple[Array, Array]) -> Source:
    return Source(name, *train, *test, task="classification")


def _named(
    name: str, train: tuple[Array, Array], test: tuple[Array, Array], names: tuple[str, ...] | None
) -> Source:
    """Images whose classes may have names."""
    if names is None:
        return _images(name, train, test)
    texts, ((x, y), (x_test, y_test)) = np.array(names), (train, test)
    return Source(name, x, texts[y], x_test, texts[y_test], "classification", names)


def _class_folders(path: Path, options: ImageOptions, for_trained: bool) -> Source:
    if for_trained:
        classes, shown_images, is_test = read_test_images(path, options)
        train, test = shown_images, shown_images if is_test else None
    else:
        found = read_image_folder(path, options)
        classes, train, test = found.classes, found.train, found.test
    texts = np.array(classes)
    with_test = {} if test is None else {"x_test": test.x, "y_test": texts[test.y]}
    source = _of_images(train, test, options, y=texts[train.y], **with_test)
    return replace(source, task="classification", classes=classes, unread=unread_folder(path))


def _bare_images(files: list[Path], options: ImageOptions) -> Source:
    found = read_image_files(files, options)
    return _of_images(found, None, options, y=None)


def _of_images(train: Images, test: Images | None, options: ImageOptions, **parts: Any) -> Source:
    skipped = train.skipped + (() if test is None or test is train else test.skipped)
    size = options.size
    text = "JPEG and PNG images" + (f" scaled to {size} x {size}" if size else "")
    text += ", made grey" if options.grey else ""
    text += f", {len(skipped)} left out that cannot be decoded" if skipped else ""
    text += ", decoded batch by batch" if isinstance(train.x, OnDemand) else ""
    files = tuple(map(str, train.paths))
    test_files = None if test is None else tuple(map(str, test.paths))
    x: Any = train.x
    return Source(
        text, x, image_size=size, files=files, test_files=test_files, skipped=skipped, **parts
    )


def _named_arrays(path: Path, arrays: NamedArrays, missing: Missing | None, words: str) -> Source:
    x, y = _named_rows(f"{shown(path)}: x", arrays.x, arrays.y, missing)
    if arrays.x_test is None:
        return Source(words, x, y)
    x_test, y_test = _named_rows(f"{shown(path)}: x_test", arrays.x_test, arrays.y_test, missing)
    return Source(words, x, y, x_test, y_test)


def _named_rows(
    name: str, x: Array, y: Array | None, missing: Missing | None
) -> tuple[Array, Array | None]:
    """Inputs with at least two axes, images as float32 in 0..1; targets with one where possible."""
    if isinstance(x, OnDemand):
        if missing == "drop":
            raise ArgumentError(
                f'{name}: missing="drop" looks at all rows: read them at once with decode="memory"'
            )
        like = _with_axes(np.empty((1, *x.shape[1:]), x.dtype))
        x = x.changed(_with_axes, like.shape[1:], like.dtype)
    else:
        x = _with_axes(x)
    y = None if y is None else one_hot_to_numbers(y)
    if missing == "drop":
        bad = _rows_with_nan(x)
        if y is not None:
            bad |= _rows_with_nan(y)
        x, y = x[~bad], None if y is None else y[~bad]
        if len(x) == 0:
            raise DataError(f'{name}: every row has NaN, so none is left: use missing="mean"')
    check_finite(name, x, nan_allowed=missing == "mean")
    if y is not None and y.dtype.kind == "f":
        check_finite(name.replace(": x", ": y"), y)
    return x, y


def _with_axes(x: Array) -> Array:
    """At least two axes; images of bytes as float32 in 0..1."""
    if x.dtype == np.uint8 and x.ndim in (3, 4):
        images = x if x.ndim == 4 else x[..., np.newaxis]
        return np.divide(images, np.float32(255.0), dtype=np.float32)
    return x[:, np.newaxis] if x.ndim == 1 else x


def _rows_with_nan(array: Array) -> NDArray[np.bool_]:
    if array.dtype.kind != "f":
        return np.zeros(len(array), bool)
    return np.asarray(np.isnan(array).reshape(len(array), -1).any(axis=1))


def _table_format(table: Table) -> str:
    delimiter = _WORDS.get(table.delimiter, repr(table.delimiter))
    header = "a header" if table.schema.header else "no header"
    text = f"text separated by {delimiter}, {header}" if table.delimiter else "columns"
    if table.dropped:
        text += f", {table.dropped} rows with missing values left out"
    elif unknown := int(np.isnan(table.x).any(axis=1).sum()):
        text += f", {unknown} rows with missing values filled with means"
    return text
