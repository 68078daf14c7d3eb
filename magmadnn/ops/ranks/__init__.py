"""Ops among the ranks of a group."""
