"""Parsers of other tools' logs, one module per tool."""

import re
import statistics
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

NUMBER = r"(\d[\d.]*(?:[eE][+-]?\d+)?)"

_ESCAPES = re.compile(r"\x1b\[[\d;?]*[A-Za-z]")  # colours, and moves of progress bars
# What srun -l, torchrun and mpirun --tag-output put before each line: `12: `, `[default0]:`,
# `[1,0]<stdout>:`.
_LABELS = re.compile(
    r"^[ \t]*(?:\d+: |\[[a-z]*\d+\]: ?|\[[^\]\s]*\d,\d+\]<std(?:out|err)>: ?)+", re.MULTILINE
)
_OUT_OF_MEMORY = re.compile(
    r"(?:torch\.|torch\.cuda\.)OutOfMemoryError|(?:CUDA|HIP) (?:error: )?out of memory"
    r"|Cuda failure.*out of memory"
)


class Step(NamedTuple):
    """One step that a log reports: where in the text, its seconds, and its batch if stated."""

    at: int
    seconds: float
    batch: int | None = None


def plain(text: str) -> str:
    """A log without colours and without the labels that launchers put before each line."""
    return _LABELS.sub("", _ESCAPES.sub("", text))


def only_value(name: str, values: Iterable[str]) -> str | None:
    """What a log states once or several times alike, None if never.

    Raises:
        ValueError: it states different values, so that it holds several runs.
    """
    distinct = list(dict.fromkeys(values))
    if len(distinct) > 1:
        raise ValueError(
            f"it states {name} as {distinct[0]} and as {distinct[1]}: give each run its own log"
        )
    return distinct[0] if distinct else None


def outcome_and_step_time(text: str, steps: Sequence[Step], line: str) -> dict[str, Any]:
    """A training log's outcome, batch and step time.

    The time is the median of the steps of the last batch size (earlier ones are of a ramp) without
    the first of them. A run that runs out of memory after its last step has no step time.

    Raises:
        ValueError: the log has neither a step (described by `line`) nor an out-of-memory error.
    """
    if _OUT_OF_MEMORY.search(text, steps[-1].at if steps else 0):
        return {"outcome": "oom"}
    if not steps:
        raise ValueError(f"it has no {line}")
    batch = steps[-1].batch
    seconds = [step.seconds for step in steps if step.batch == batch]
    row = {"outcome": "ok", "step_time_s": statistics.median(seconds[1:] or seconds)}
    return row if batch is None else row | {"global_batch_size": batch}
