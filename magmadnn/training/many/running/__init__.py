"""How the models of a set are trained: whose turn it is, where, and in which memory."""
