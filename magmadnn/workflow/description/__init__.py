"""What a workflow is: its file, checks, the graph of dependencies, and what may run together."""
