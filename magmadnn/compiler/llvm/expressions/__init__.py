"""Scalar formulas as vector code, and operands spread over rows and columns."""
