"""A search from the command line: its arguments, its space, what it leaves."""
