"""Measures one point: starts its ranks, watches them, and always leaves one row. No torch here."""

from scaling.launch.point import measure
from scaling.launch.unsettled import NodeLost, Unsettled

__all__ = ["NodeLost", "Unsettled", "measure"]
