"""The page that `magmadnn evaluate --report` writes: what a network gets wrong, and how."""
