"""Drawings of graphs and plans."""
