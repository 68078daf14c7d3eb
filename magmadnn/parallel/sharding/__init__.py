"""Data parallel training of which each rank keeps parts: of the optimiser's state, or of parameters too."""
