"""Calls of libraries among what is launched."""
