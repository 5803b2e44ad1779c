"""Parse a result file of MLPerf Training: lines of :::MLLOG and JSON."""

import json
from typing import Any

from scaling.foreign.logs import outcome_and_step_time

_MARK = ":::MLLOG "
_MODELS = {"gpt3": "gpt3-175b", "llama31_405b": "llama3.1-405b", "llama31_8b": "llama3.1-8b"}


def parse_log(text: str) -> list[dict[str, Any]]:
    """The one row of a result file. The layout is not in it, but in the submission's configuration.

    A step's time is `train_step_time` of `tracked_stats`, in seconds, or the batch over its
    `throughput`, in sequences per second.

    Raises:
        ValueError: a line is not JSON, or no step is tracked.
    """
    row: dict[str, Any] = {"framework": "NeMo (MLPerf)"}
    seconds: list[float] = []
    rates: list[float] = []
    for number, line in enumerate(text.splitlines(), 1):
        at = line.find(_MARK)
        if at < 0:
            continue
        try:
            event = json.loads(line[at + len(_MARK) :])
            key, value = event["key"], event["value"]
        except (ValueError, TypeError, KeyError):
            raise ValueError(f"line {number}: is no JSON of key and value after {_MARK}") from None
        if key == "submission_benchmark":
            row["model"] = _MODELS.get(str(value), str(value))
        elif key == "global_batch_size":
            row["global_batch_size"] = value
        elif key == "max_sequence_length":
            row["seq_length"] = value
        elif key == "tracked_stats" and isinstance(value, dict):
            seconds += [float(value["train_step_time"])] if "train_step_time" in value else []
            rates += [float(value["throughput"])] if "throughput" in value else []
    if not seconds and "global_batch_size" in row:
        seconds = [row["global_batch_size"] / rate for rate in rates if rate > 0]
    return [
        row | outcome_and_step_time("", seconds, "tracked_stats with train_step_time or throughput")
    ]
