"""Object code: compiled in parallel, kept on disk."""
