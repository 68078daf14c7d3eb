"""Matrix products as CUDA C++."""
