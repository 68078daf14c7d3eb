"""From a plan to launches: selection, hazards, fusion, order."""
