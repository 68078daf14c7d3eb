"""Factors of matrices, and equations whose matrix is one of them."""
