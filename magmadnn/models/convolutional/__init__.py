"""Convolutional networks by name; each gives a Model."""
