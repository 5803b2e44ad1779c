"""Points that cannot be rehearsed, and why. Imports no torch."""

import itertools

from scaling.layout.engines import ENGINES, engine_module, engine_refusals
from scaling.study.point import Point


def rehearsal_refusal(point: Point) -> str | None:
    """Why this point cannot be rehearsed: one sentence, None if it can."""
    if point.layout.engine not in ENGINES:
        return f"engine: {point.layout.engine} cannot be rehearsed: its code is not of this project"
    if point.layout.compile:
        return "compile: true cannot be rehearsed: what it keeps is the compiler's"
    if point.layout.routing == "learned":
        return (
            "routing: learned cannot be rehearsed: how many tokens an expert gets is a number of "
            "its router; balanced and skewed:X deal them by their places"
        )
    refusals = engine_refusals(point.shape, point.layout)
    missing = engine_module(point.layout.engine, "refusals").missing_software(point.layout)
    return next(itertools.chain(refusals, missing), None)


def memory_refusal(point: Point) -> str | None:
    """Why a rehearsal cannot count the bytes on this point's GPUs: one sentence, None if it can."""
    if point.layout.optimizer_offload != "none":
        return (
            f"optimizer_offload: {point.layout.optimizer_offload} cannot be counted: in rehearsals "
            "all tensors are the host's, those that would be on the GPU too"
        )
    return rehearsal_refusal(point)
