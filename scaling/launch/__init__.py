"""Measure one point: start its ranks, watch them, and always leave one row. Imports no torch."""

from scaling.launch.not_measured import NodeLost, NotMeasured, ignore_signals
from scaling.launch.point import measure

__all__ = ["NodeLost", "NotMeasured", "ignore_signals", "measure"]
