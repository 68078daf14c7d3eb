"""Plans of programs that are built alike are made once, and filled in for other nodes and sizes."""
