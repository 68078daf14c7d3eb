"""The native driver: steps that threads draw, worker threads, clocks."""
