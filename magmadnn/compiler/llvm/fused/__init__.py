"""Everything else that computes: rows, columns, random numbers, moves."""
