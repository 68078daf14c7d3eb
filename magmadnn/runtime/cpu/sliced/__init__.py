"""Many batches in one native call."""
