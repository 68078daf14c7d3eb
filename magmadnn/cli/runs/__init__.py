"""A run of `magmadnn train`: its settings, data, training, results and files."""
