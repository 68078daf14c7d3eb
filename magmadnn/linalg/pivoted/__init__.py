"""QR with exchanges of columns on a GPU."""
