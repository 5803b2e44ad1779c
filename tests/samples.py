"""Values of every axis, for tests that try them all."""

from typing import Any

from hypothesis import strategies as st

from scaling.layout.axes import AXES, Axis
from scaling.layout.layout import Layout

COUNTS = (1, 2, 3, 4, 8)


def values_of(axis: Axis) -> tuple[Any, ...]:
    """The values allowed on this axis; a few of them if it is a count."""
    listed = COUNTS if axis.values is None else axis.values
    return (None, *listed) if axis.optional else listed


def _drawn(axis: Axis) -> st.SearchStrategy[Any]:
    if axis.values is not None:
        return st.sampled_from(values_of(axis))
    sizes = st.integers(1, 16)
    return st.none() | sizes if axis.optional else sizes


layouts = st.builds(
    Layout,
    **{name: _drawn(axis) for name, axis in AXES.items()},
    dp=st.integers(1, 16),
    gradient_accumulation_steps=st.integers(1, 16),
    seq_length=st.integers(1, 4096),
)
