"""Points and tables as arrays."""
