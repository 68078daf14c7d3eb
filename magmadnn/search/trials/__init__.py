"""Trials: what one is, which comes next, and how it is trained."""
