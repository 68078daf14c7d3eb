"""Running plans on an NVIDIA GPU: memory there, kernels in graphs, many batches in one launch."""
