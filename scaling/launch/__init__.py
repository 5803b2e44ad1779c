"""Measures one point: starts its ranks, watches them, and always leaves one row. No torch here."""

from scaling.launch.point import NodeLost, measure

__all__ = ["NodeLost", "measure"]
