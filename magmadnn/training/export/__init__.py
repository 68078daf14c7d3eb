"""A trained model as an object file for C and Fortran."""
