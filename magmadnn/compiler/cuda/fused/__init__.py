"""Fused CUDA kernels: rows, columns, random numbers, moves, and kernels that became one."""
