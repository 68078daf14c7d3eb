"""How each library is called: one file per library, on raw pointers and bytes.

Nothing here knows tensors, graphs or kinds of memory; those stand above.
"""
