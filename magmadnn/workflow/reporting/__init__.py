"""What became of a workflow, as a table and as a page."""
