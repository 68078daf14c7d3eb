"""Data sets, readers, preparation, batches and prefetching."""

from __future__ import annotations

from typing import TYPE_CHECKING

from magmadnn.calls import explains_names
from magmadnn.data import augment as augment
from magmadnn.data.batching import batch_count, batches, order, split, split_rows
from magmadnn.data.hdf5 import read_hdf5
from magmadnn.data.images.cifar import cifar10, cifar10_classes, cifar100, cifar100_classes
from magmadnn.data.images.folders import ImageFolder, Images, image_folder
from magmadnn.data.images.idx import idx_folder, mnist
from magmadnn.data.loading import Dataset, Rows, load, load_for
from magmadnn.data.npz import NamedArrays, read_npz
from magmadnn.data.prefetching import Prefetcher, prefetch
from magmadnn.data.preparation.preparation import Preparation
from magmadnn.data.preparation.standardize import Standardize
from magmadnn.data.preparation.targets import class_names, number_classes, target_kind
from magmadnn.data.tables.reading import Table, read_table, read_table_like
from magmadnn.data.tables.schema import Column, Schema, Target
from magmadnn.data.validation import check_arrays

__all__ = [
    "Column",
    "Dataset",
    "ImageFolder",
    "Images",
    "NamedArrays",
    "Prefetcher",
    "Preparation",
    "Rows",
    "Schema",
    "Standardize",
    "Table",
    "Target",
    "augment",
    "batch_count",
    "batches",
    "check_arrays",
    "cifar10",
    "cifar10_classes",
    "cifar100",
    "cifar100_classes",
    "class_names",
    "idx_folder",
    "image_folder",
    "load",
    "load_for",
    "mnist",
    "number_classes",
    "order",
    "prefetch",
    "read_hdf5",
    "read_npz",
    "read_table",
    "read_table_like",
    "split",
    "split_rows",
    "target_kind",
]

if not TYPE_CHECKING:  # a type checker would take any name for one of this module
    __getattr__ = explains_names("magmadnn.data", __all__)
