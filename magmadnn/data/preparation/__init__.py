"""What models keep to prepare raw rows: statistics, principal components, classes."""
