"""Logs of other tools, each read by a module of its own; what a training log ends with."""

import re
import statistics
from collections.abc import Sequence
from typing import Any

_OUT_OF_MEMORY = re.compile(r"(?:torch\.|torch\.cuda\.)OutOfMemoryError|CUDA out of memory")


def outcome_and_step_time(text: str, steps_s: Sequence[float], line: str) -> dict[str, Any]:
    """Outcome and step time of a log: the median of its steps (seconds), the first left out.

    Raises:
        ValueError: no step is logged, for which `line` is looked for, and none ran out of memory.
    """
    if steps_s:
        return {"outcome": "ok", "step_time_s": statistics.median(steps_s[1:] or steps_s)}
    if _OUT_OF_MEMORY.search(text):
        return {"outcome": "oom"}
    raise ValueError(f"it has no {line}")
