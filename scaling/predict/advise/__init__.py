"""Searches, guided sweeps and costs on top of predictions."""
