"""Ranks of a training whose GPUs read and write each other's memory."""
