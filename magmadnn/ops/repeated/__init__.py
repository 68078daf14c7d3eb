"""Ops that compute graphs several times."""
