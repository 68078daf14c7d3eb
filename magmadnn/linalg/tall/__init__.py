"""Least squares of matrices with no fewer rows than columns, on a GPU."""

from .products import FULL, LOW, UNKNOWN, all_hold, by_products
from .ranges import by_ranges

__all__ = ["FULL", "LOW", "UNKNOWN", "all_hold", "by_products", "by_ranges"]
