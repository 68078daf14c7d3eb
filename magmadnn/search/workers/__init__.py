"""Where trials run: in this process, or in worker processes of their own."""
