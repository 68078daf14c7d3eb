"""Many batches in one go on a device."""
