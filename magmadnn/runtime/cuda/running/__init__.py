"""Running CUDA graphs: several steps per execution."""
