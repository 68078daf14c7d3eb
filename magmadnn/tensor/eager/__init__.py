"""Eager calls on a GPU: small programs that are kept, by what is called and what operands look like."""
