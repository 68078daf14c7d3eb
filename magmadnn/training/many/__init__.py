"""Many models: trained in one call, cross-validated, and used together."""
