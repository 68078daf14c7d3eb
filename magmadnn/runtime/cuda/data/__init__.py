"""How data comes to a GPU, and what stays there."""
