"""Where elements lie: layouts as values, how users write them, and what has to be sent between two."""
