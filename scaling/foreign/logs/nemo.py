"""Parse NeMo's training log: lines of steps, or the progress bar of older releases."""

import re
from typing import Any

from scaling.foreign.logs import NUMBER, Step, outcome_and_step_time

_STEP = re.compile(rf".*train_step_timing in s[:=]\s*{NUMBER}.*")
_NUMBER = re.compile(rf"global_step[:=]\s*{NUMBER}")
_BATCH = re.compile(r"global_batch_size[:=]\s*(\d+)")
_PEAK = re.compile(rf"peak_memory_usage[:=]\s*{NUMBER}")


def parse_log(text: str) -> list[dict[str, Any]]:
    """The one row of a log. The log does not state the layout.

    Raises:
        ValueError: the log has neither a step nor an out-of-memory error.
    """
    steps: dict[object, Step] = {}
    for line in _STEP.finditer(text):
        number, batch = _NUMBER.search(line[0]), _BATCH.search(line[0])
        # a progress bar is drawn several times for each step
        key = number[1] if number else line.start()
        steps[key] = Step(line.start(), float(line[1]), int(batch[1]) if batch else None)
    found = outcome_and_step_time(text, [*steps.values()], '"train_step_timing in s"')
    row = {"framework": "NeMo", **found}
    if row["outcome"] == "ok" and (peaks := _PEAK.findall(text)):
        row["peak_memory_bytes"] = int(max(map(float, peaks)))
    return [row]
