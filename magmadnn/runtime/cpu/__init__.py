"""Native plans on the CPU: tasks for threads, several steps per execution, object files."""
