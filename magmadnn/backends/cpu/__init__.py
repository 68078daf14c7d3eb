"""Libraries that compute on the host."""
