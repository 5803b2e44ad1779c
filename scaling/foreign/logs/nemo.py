"""Parse NeMo's training log: lines of steps, or the progress bar of older releases."""

import re
from typing import Any

from scaling.foreign.logs import outcome_and_step_time

_STEP = re.compile(r"train_step_timing in s(?::|=)\s*([\d.]+)")
_BATCH = re.compile(r"global_batch_size(?::|=)\s*(\d+)")
_PEAK = re.compile(r"peak_memory_usage(?::|=)\s*(\d+)")


def parse_log(text: str) -> list[dict[str, Any]]:
    """The one row of a log. The log does not state the layout.

    Raises:
        ValueError: the log has neither a step nor an out-of-memory error.
    """
    steps_s = [float(seconds) for seconds in _STEP.findall(text)]
    row = {"framework": "NeMo", **outcome_and_step_time(text, steps_s, '"train_step_timing in s"')}
    if batches := _BATCH.findall(text):
        row["global_batch_size"] = int(batches[-1])
    if steps_s and (peaks := _PEAK.findall(text)):
        row["peak_memory_bytes"] = max(int(peak) for peak in peaks)
    return [row]
