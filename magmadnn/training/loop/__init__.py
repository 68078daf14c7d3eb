"""The training loop: epochs, batches, and where they come from."""
