"""What a model is trained on and judged by: losses, metrics, targets, weights."""
