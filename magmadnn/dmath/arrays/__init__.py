"""What a worker holds of spread arrays: its blocks, how they get to other layouts, and how they are made."""
