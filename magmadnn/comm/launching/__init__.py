"""Starting the processes of a job with mpiexec, and ending them together."""
