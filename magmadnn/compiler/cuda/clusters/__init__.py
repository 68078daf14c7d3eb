"""Steps of many models as CUDA C++, a cluster of blocks for each."""
