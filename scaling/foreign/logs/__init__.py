"""Parsers of other tools' logs, one module per tool."""

import re
import statistics
from collections.abc import Sequence
from typing import Any

_OUT_OF_MEMORY = re.compile(r"(?:torch\.|torch\.cuda\.)OutOfMemoryError|CUDA out of memory")


def outcome_and_step_time(text: str, steps_s: Sequence[float], line: str) -> dict[str, Any]:
    """A training log's outcome, and its step time: the median of all steps but the first.

    Raises:
        ValueError: the log has neither a step (described by `line`) nor an out-of-memory error.
    """
    if steps_s:
        return {"outcome": "ok", "step_time_s": statistics.median(steps_s[1:] or steps_s)}
    if _OUT_OF_MEMORY.search(text):
        return {"outcome": "oom"}
    raise ValueError(f"it has no {line}")
