"""Functions of spread arrays but products: of elements, sums, slices, factors."""
