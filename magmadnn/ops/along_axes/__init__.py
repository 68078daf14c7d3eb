"""Ops along axes: reductions, running sums, and what is made of them."""
