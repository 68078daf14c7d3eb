"""Many models in one launch: a block for each."""
