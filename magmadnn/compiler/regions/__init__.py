"""From a program to regions, each of which becomes one kernel: fusion, aliases, phases."""
