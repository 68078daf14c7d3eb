"""Native plans: steps in running order, their memory, their text and pictures."""
