"""The words that kernels are written with: targets, values, loops, arguments."""
