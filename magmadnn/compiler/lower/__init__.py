"""From a region to the description of a kernel, and which kernel computes a product."""
