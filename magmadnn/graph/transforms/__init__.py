"""From graphs to other graphs: gradients, other forms, many models as one."""
