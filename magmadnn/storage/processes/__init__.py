"""Processes that write to a folder: how long they live."""
