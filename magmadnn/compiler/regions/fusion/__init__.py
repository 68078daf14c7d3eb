"""Nodes become regions, each of which will be one kernel."""
