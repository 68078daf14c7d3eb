"""Many small matrices at a time, one in each lane of a vector."""
