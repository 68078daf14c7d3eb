"""Steps that are calls of the device's libraries."""
