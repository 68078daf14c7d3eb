"""Kernels as CUDA C++: descriptions of kernels become text that NVRTC compiles."""
