"""Kernels around calls of the device's library."""
