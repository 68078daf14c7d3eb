"""What a module is while it runs: its context, and how functions, executables and libraries are called."""
