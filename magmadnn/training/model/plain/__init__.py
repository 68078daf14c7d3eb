"""A model, and what a training is, as plain data."""
