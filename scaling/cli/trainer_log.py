"""The log of another trainer as one row in our columns."""

import json
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scaling.errors import InputError, did_you_mean, shortened

_WARMUP = 2  # first steps that hold compilation and set-up in every program
_NEEDED = ("model", "cluster", "world_size", "global_batch_size", "seq_length")
_MOST_BYTES = 2**30


def row_of_log(log: Path, trainer: str, columns: Sequence[str]) -> dict[str, Any]:
    """The row that a log tells, by its trainer's entry; `columns` say what it does not.

    Raises:
        InputError: the log has no step or no time of one, or a needed column is nowhere.
    """
    from scaling.record.row import Row, fields_of
    from scaling.trainers.entries import trainer_named
    from scaling.trainers.logs import read_log, steady_seconds

    entry = trainer_named(trainer)
    if not log.is_file():
        raise InputError(f"{log}: no such file")
    if log.stat().st_size > _MOST_BYTES:
        raise InputError(f"{log}: has more than {_MOST_BYTES:,} bytes")
    with log.open(encoding="utf-8", errors="replace") as lines:
        reader = read_log(entry, lines)
    if not reader.steps:
        raise InputError(f"{log}: no line is a step of {trainer}: {shortened(entry.reads.step)}")
    known = fields_of(Row)
    facts: dict[str, Any] = {
        name: int(text) for name, text in reader.head.items() if name in known and text.isdigit()
    }
    for pair in columns:
        name, equals, text = pair.partition("=")
        if not equals or name not in known:
            raise InputError(f"--column {shortened(pair)}: {did_you_mean(name[:60], known)}")
        facts[name] = _typed(text)
    for name in _NEEDED:
        if name not in facts:
            raise InputError(f"{log}: does not say {name}; give --column {name}=...")
    try:
        samples = float(facts["global_batch_size"])
        tokens, gpus = samples * float(facts["seq_length"]), int(facts["world_size"])
    except (TypeError, ValueError):
        raise InputError(
            f"{log}: global_batch_size, seq_length and world_size must be whole numbers"
        ) from None
    seconds, stated = steady_seconds(
        reader,
        warmup=min(_WARMUP, len(reader.steps) - 1),
        tokens=tokens,
        samples=samples,
        gpus=gpus,
    )
    if not seconds or not stated:
        raise InputError(f"{log}: tells the time of no ordinary step")
    losses = [step.values.get("loss", math.nan) for step in reader.steps]
    whole = all(map(math.isfinite, losses))
    return {
        "framework": trainer,
        **({"engine": trainer} if entry.command else {}),
        **facts,
        "outcome": "ok",
        "clock": "trainer's log",
        "step_times_s": seconds,
        "step_time_s": statistics.median(seconds),
        **({"losses": losses} if whole else {}),
        **({} if reader.peak_bytes is None else {"peak_memory_bytes": reader.peak_bytes}),
    }


def _typed(text: str) -> Any:
    """A cell as JSON has it: a whole number, a number, true or false, else text."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, int | float) and math.isfinite(value) else text
