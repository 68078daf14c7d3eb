"""Functions of matrices by libraries: where they are, and calls for stacks that are there."""
