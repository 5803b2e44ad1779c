"""Arithmetic on spans of time: union, intersection, and the seconds they cover."""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

# [n, 2] of starts and ends in seconds, in any order, overlapping or not
Spans = npt.NDArray[np.float64]


def as_spans(pairs: Iterable[tuple[float, float]]) -> Spans:
    """The array of these (start, end) pairs."""
    return np.array(list(pairs), dtype=np.float64).reshape(-1, 2)


def union(spans: Spans) -> Spans:
    """The same instants as disjoint spans in order; empty ones are dropped."""
    spans = spans[spans[:, 1] > spans[:, 0]]
    if not len(spans):
        return spans
    spans = spans[np.argsort(spans[:, 0], kind="stable")]
    latest = np.maximum.accumulate(spans[:, 1])
    begins = np.concatenate(([True], spans[1:, 0] > latest[:-1]))
    first = np.flatnonzero(begins)
    last = np.concatenate((first[1:], [len(spans)])) - 1
    return np.column_stack((spans[first, 0], latest[last]))


def covered_s(spans: Spans) -> float:
    """Seconds that at least one span covers."""
    disjoint = union(spans)
    return float((disjoint[:, 1] - disjoint[:, 0]).sum())


def clip(spans: Spans, window: Spans) -> Spans:
    """The parts of the spans that lie within the window, disjoint and in order."""
    inner, outer = union(spans), union(window)
    parts = [
        np.column_stack((np.maximum(inner[:, 0], start), np.minimum(inner[:, 1], end)))
        for start, end in outer
    ]
    return union(np.concatenate(parts)) if parts else as_spans([])


def uncovered_s(spans: Spans, cover: Spans) -> float:
    """Seconds that one of the spans covers and none of `cover`."""
    # the two sums are rounded, so their difference may fall below 0
    return max(0.0, covered_s(np.concatenate((spans, cover))) - covered_s(cover))
