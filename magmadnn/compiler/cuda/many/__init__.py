"""Kernels around the steps of many models: orders of rows, and copies of their variables."""
