"""From a loss to the graph of a step."""
