"""Many models whose trainings are shared out: among the ranks of a job, or the workers of `md.workers`."""
