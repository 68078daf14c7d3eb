"""Solutions with the digits of float64 by factors in float32 whose products run in float16."""
