"""The model: what users call, what it is made of, and its files."""
