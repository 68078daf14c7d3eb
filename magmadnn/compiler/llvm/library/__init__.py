"""Calls of functions of BLAS and LAPACK."""
