"""Pooling of images, sequences and volumes."""
