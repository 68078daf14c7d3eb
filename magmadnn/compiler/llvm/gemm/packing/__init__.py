"""Factors of a product, copied into the order in which a tile reads them."""
