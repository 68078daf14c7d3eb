"""The tuple space: what is put under a tag waits on a server until somebody gets it."""
