"""Ways to search: which points come next, and which trials go on."""
