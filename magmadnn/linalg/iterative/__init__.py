"""Equations that are solved step by step, and matrices with few elements."""
