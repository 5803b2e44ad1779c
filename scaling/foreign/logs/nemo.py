"""NeMo's training log: lines of steps, or the progress bar of older releases."""

import re
from typing import Any

from scaling.foreign.logs import outcome_and_step_time

_STEP = re.compile(r"train_step_timing in s(?::|=)\s*([\d.]+)")
_BATCH = re.compile(r"global_batch_size(?::|=)\s*(\d+)")
_PEAK = re.compile(r"peak_memory_usage(?::|=)\s*(\d+)")


def parse_log(text: str) -> list[dict[str, Any]]:
    """The one row of a log: the median of its steps, the first left out. It names no layout.

    Raises:
        ValueError: no step is logged and none ran out of memory.
    """
    timed = [float(seconds) for seconds in _STEP.findall(text)]
    row = {"framework": "NeMo", **outcome_and_step_time(text, timed, '"train_step_timing in s"')}
    if batches := _BATCH.findall(text):
        row["global_batch_size"] = int(batches[-1])
    if timed and (peaks := _PEAK.findall(text)):
        row["peak_memory_bytes"] = max(int(peak) for peak in peaks)
    return [row]
