"""Engines that train: each has its own room, which scaling/layout/engines.py names."""
