"""What a product by the device's library is called with."""

from __future__ import annotations

from dataclasses import replace

from magmadnn.backends.cuda.engine import ProductNode


def test_leading_dimensions_are_at_least_a_row() -> None:
    """A matrix of one row has no stride to speak of; BLAS refuses less than a row all the same."""
    node = ProductNode("float32", False, (5, 7, 3), (False, False), 0, 0, 0, (3, 7, 7), 0)
    assert node.leading_dimensions == (3, 7, 7)
    assert replace(node, strides=(11, 13, 17)).leading_dimensions == (11, 13, 17)
    assert replace(node, strides=(0, 1, 2)).leading_dimensions == (3, 7, 7)
    turned = replace(node, transposes=(True, True), strides=(1, 1, 1))
    assert turned.leading_dimensions == (5, 3, 7)
    assert replace(node, sizes=(5, 7, 0), strides=(0, 0, 7)).leading_dimensions == (1, 7, 7)
