"""Groups of ranks, and what crosses them."""
