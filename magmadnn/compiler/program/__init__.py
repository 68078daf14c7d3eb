"""One pass for each file: a pure function from Program to Program."""
