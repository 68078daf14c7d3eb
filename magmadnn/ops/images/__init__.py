"""Ops over the places of images, sequences and volumes, channels last."""
