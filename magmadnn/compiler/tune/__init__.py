"""How the loops of products are cut, by measurement, where no bit depends on it."""
