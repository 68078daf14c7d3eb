"""What all CUDA kernels are printed with: formulas, functions, variants."""
