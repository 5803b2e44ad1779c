"""A random order that a study's seed fixes, whatever points come or go. Standard library only."""

import hashlib
from collections.abc import Iterable


def place_of(seed: int, point_id: str, purpose: str = "order") -> float:
    """A number in [0, 1) that looks random, the same for the same seed, point and purpose."""
    digest = hashlib.sha256(f"{purpose}:{seed}:{point_id}".encode()).digest()
    return int.from_bytes(digest[:7], "big") / 2**56


def shuffled(point_ids: Iterable[str], seed: int) -> list[str]:
    """These ids in the random order of this seed."""
    return sorted(point_ids, key=lambda point_id: place_of(seed, point_id))
