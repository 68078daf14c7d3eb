"""Where time goes: kernels, layers, limits of a core."""
