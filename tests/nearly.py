"""Equality up to the rounding of sums."""

from typing import Any

import pytest


def nearly(value: Any) -> Any:
    """An object that equals this value up to the rounding of its floats, at any depth."""
    if isinstance(value, list):
        return [nearly(each) for each in value]
    if isinstance(value, dict):
        return {key: nearly(each) for key, each in value.items()}
    if isinstance(value, float):
        return pytest.approx(value, rel=1e-9, abs=1e-12, nan_ok=True)
    return value
