"""Layers over the places of sequences, images and volumes, channels last."""
