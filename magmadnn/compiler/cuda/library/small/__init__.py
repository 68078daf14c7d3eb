"""Functions of small matrices, a group of threads each."""
