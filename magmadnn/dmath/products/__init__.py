"""Products of two matrices in any layouts: ways to compute them, the planner that picks one, and what runs
it.
"""
