"""Parse a result file of MLPerf Training: lines of :::MLLOG and JSON."""

import json
import re
from typing import Any

from scaling.foreign.logs import Step, only_value, outcome_and_step_time

_EVENT = re.compile(r":::MLLOG (.*)")
_MODELS = {"gpt3": "gpt3-175b", "llama31_405b": "llama3.1-405b", "llama31_8b": "llama3.1-8b"}
_COUNTS = {"global_batch_size": "global_batch_size", "max_sequence_length": "seq_length"}


def parse_log(text: str) -> list[dict[str, Any]]:
    """The one row of a result file. The layout is not in it, but in the submission's configuration.

    A step's time is `train_step_time` of `tracked_stats`, in seconds, or the batch over its
    `throughput`, in sequences per second.

    Raises:
        ValueError: a line is not JSON, no step is tracked, or several runs are in the file.
    """
    stated: dict[str, list[str]] = {}
    seconds: list[Step] = []
    rates: list[Step] = []
    for found in _EVENT.finditer(text):
        try:
            event, _ = json.JSONDecoder().raw_decode(found[1])
            key, value = event["key"], event["value"]
        except (ValueError, TypeError, KeyError):
            number = text.count("\n", 0, found.start()) + 1
            raise ValueError(f"line {number}: is no JSON of key and value after :::MLLOG") from None
        if key == "submission_benchmark" or key in _COUNTS:
            stated.setdefault(key, []).append(str(value))
        elif key == "tracked_stats" and isinstance(value, dict):
            for name, steps in (("train_step_time", seconds), ("throughput", rates)):
                amount = value.get(name)
                if isinstance(amount, int | float) and amount > 0:
                    steps.append(Step(found.start(), amount))
    row: dict[str, Any] = {"framework": "NeMo (MLPerf)"}
    if benchmark := only_value("submission_benchmark", stated.pop("submission_benchmark", ())):
        row["model"] = _MODELS.get(benchmark, benchmark)
    for key, values in stated.items():
        count = only_value(key, values)
        if count is None or not count.isdigit():
            raise ValueError(f"{key}={count} is no whole number")
        row[_COUNTS[key]] = int(count)
    if not seconds and (batch := row.get("global_batch_size")):
        seconds = [step._replace(seconds=batch / step.seconds) for step in rates]
    line = "tracked_stats with train_step_time or throughput"
    return [row | outcome_and_step_time(text, seconds, line)]
