"""What the processes of a job do: executive, tuple servers, workers."""
