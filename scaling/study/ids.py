"""Ids of points, and what of a point they are made from."""

import dataclasses
import hashlib
import json
from typing import TYPE_CHECKING, Any

from scaling.layout.axes import AXES
from scaling.layout.layout import Layout
from scaling.layout.optional_parts import PART_DEFAULTS
from scaling.layout.shapes import ModelShape

if TYPE_CHECKING:  # points store their fields by this module
    from scaling.study.point import Point

# Hexadecimal digits of the digest in an id: usually, and where two points of a grid share those.
DIGEST, LONG_DIGEST = 8, 32

_ADDED_LATER = PART_DEFAULTS | {n: axis.default for n, axis in AXES.items() if axis.added_later}


def point_id(readable: str, point: "Point", digits: int) -> str:
    """The readable text, and a digest of everything that could change the point's measurement.

    The digest leaves out the time limit, so that a longer one does not repeat measurements. It also
    leaves out whether a short point runs in full, which predictions decide.
    """
    digested = [
        stored_fields(point.shape),
        stored_fields(point.layout),
        point.cluster,
        point.gpu,
        point.study_kind,
        point.seed,
        point.warmup_steps,
        point.measured_steps,
        point.repeat,
        *([point.gradient_clipping] if point.gradient_clipping else []),
        # options added later count only where they are used, so that older points stay valid
        *([{"at_least": point.at_least_steps, "until": point.until}] if point.until else []),
        *([{"accumulation": "short"}] if point.accumulation != "full" else []),
    ]
    digest = hashlib.sha256(json.dumps(digested, sort_keys=True).encode()).hexdigest()
    return f"{readable}-{digest[:digits]}"


def stored_fields(part: Layout | ModelShape) -> dict[str, Any]:
    """The fields that files and ids of points hold: without those added later at their default.

    So an added axis, or an added part of a model, leaves points alone that were measured before.
    """
    fields = ((field.name, getattr(part, field.name)) for field in dataclasses.fields(part))
    return {
        name: value
        for name, value in fields
        if name not in _ADDED_LATER or value != _ADDED_LATER[name]
    }
