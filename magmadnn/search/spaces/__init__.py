"""What is searched: the values that a parameter may have, and the points that they make."""
