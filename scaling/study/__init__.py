"""YAML in, checked values out, and the grid of points they ask for."""
