"""Rows for tests: the columns of a point, and nulls for everything that is measured."""

from typing import Any

from scaling.record.files import point_columns
from scaling.record.row import Row
from scaling.study.point import Point


def row_of(point: Point, **changes: Any) -> Row:
    """A row of this point with outcome ok and steps of one second, except for `changes`."""
    timed = {"step_time_s": 1.0} if changes.get("outcome", "ok") == "ok" else {}
    return Row(
        **{
            **point_columns(point), "attempt": 1, "outcome": "ok", "duration_s": 1.0,
            "scaling_version": "0", "hosts": ["here"], "started_at": "2026-01-01T00:00:00Z",
            "stack_fingerprint": "abc", **timed, **changes,
        }
    )  # fmt: skip
