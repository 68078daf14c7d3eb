"""A training step of several ranks as one compiled program, sums over ranks included."""
