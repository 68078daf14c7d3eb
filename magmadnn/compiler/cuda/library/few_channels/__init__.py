"""Convolutions of few channels by kernels of our own."""
