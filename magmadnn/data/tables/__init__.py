"""Tables: columns of numbers and categories, read from delimited text."""
