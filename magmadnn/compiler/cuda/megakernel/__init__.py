"""A whole small plan as one CUDA kernel."""
