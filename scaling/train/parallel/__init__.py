"""Process groups, and the collectives of each parallel axis."""
