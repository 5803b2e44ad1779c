"""Read tables and logs of other tools, check them, and complete them from related columns."""
