"""Layouts as columns: every axis of a layout and every size of a model by its own name.

The columns follow from the tables `AXES` and `ModelShape`, so a new axis is read with no line here.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from scaling.arrays import Column, Flags, Strings
from scaling.layout.axes import AXES, SETTING_AXES
from scaling.layout.layout import Layout
from scaling.layout.shapes import ModelShape
from scaling.predict.read.stacks import own_framework

# Sizes of a layout that are no axes.
SIZES = ("world_size", "dp", "gradient_accumulation_steps", "seq_length")
SHAPE = tuple(each.name for each in dataclasses.fields(ModelShape) if each.type in (int, bool))

# On-off axes added after the formulas, which take no account of them.
UNPREDICTED = tuple(name for name, axis in AXES.items() if axis.kind is bool and axis.added_later)
# How rows are predicted that choose one of UNPREDICTED, if not as without it.
_PREDICTED_AS = {"compile": "with fused norms and nothing else of it"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """One value per point, (n,).

    by_name: AXES, SIZES, SHAPE and `gpus_per_node`: words as they are, flags as booleans, numbers
    as floats, NaN where unknown. A missing gpus_per_node is the cluster's. note: why a point cannot
    be predicted, None if it can. assumptions: sentences about what was taken for granted.
    """

    model: Strings
    cluster: Strings
    framework: Strings
    by_name: dict[str, Column]
    note: Strings
    assumptions: tuple[str, ...]
    point_id: Strings | None

    def __len__(self) -> int:
        return len(self.note)

    @property
    def setting(self) -> Strings:
        """The choices on the axes that define the work, which candidates must share."""
        choices = zip(*(self.by_name[name].tolist() for name in SETTING_AXES), strict=True)
        return np.array(["|".join(map(str, row)) for row in choices], dtype=object)


def columns_of_layouts(
    layouts: Sequence[Layout],
    shapes: Sequence[ModelShape],
    *,
    models: Sequence[str],
    clusters: Sequence[str],
    framework: str | None = None,
    gpus_per_node: Sequence[float] | None = None,
    point_id: Sequence[str] | None = None,
) -> Columns:
    """Columns of layouts, each with its model's shape and name and its cluster's name.

    `framework` is the software of all of them; by default each layout's engine.
    """
    n = len(layouts)
    kinds = {name: axis.kind for name, axis in AXES.items()} | dict.fromkeys(SIZES, int)
    by_name = {
        name: as_column(kind, (getattr(one, name) for one in layouts))
        for name, kind in kinds.items()
    }
    unique = {id(shape): shape for shape in shapes}  # most points share a few shapes
    index_by_id = {key: index for index, key in enumerate(unique)}
    index = np.array([index_by_id[id(shape)] for shape in shapes], dtype=np.int64)
    for name in SHAPE:
        sizes = np.array([getattr(shape, name) for shape in unique.values()], dtype=np.float64)
        by_name[name] = sizes[index]
    by_name["gpus_per_node"] = np.array(gpus_per_node or [np.nan] * n, dtype=np.float64)
    frameworks = [framework or own_framework(each.engine) for each in layouts]
    return Columns(
        model=np.array(models, dtype=object),
        cluster=np.array(clusters, dtype=object),
        framework=np.array(frameworks, dtype=object),
        by_name=by_name,
        note=np.full(n, None, dtype=object),
        assumptions=tuple(unpredicted_sentences(by_name)),
        point_id=None if point_id is None else np.array(point_id, dtype=object),
    )


def as_column(kind: type, values: Iterable[object]) -> Column:
    """Values of an axis as an array: flags, numbers (null is NaN) or words."""
    dtype = {bool: np.bool_, int: np.float64}.get(kind, object)
    return np.array(list(values), dtype=dtype)


def predictable_rows(note: Strings) -> Flags:
    """Mask of rows without a note against them, (n,)."""
    return np.array([reason is None for reason in note.tolist()], dtype=bool)


def unpredicted_sentences(by_name: Mapping[str, Column]) -> list[str]:
    """A sentence per choice of UNPREDICTED that rows make, and how they are predicted."""
    return [
        f"{name} is asked for in {int(by_name[name].sum())} rows: predicted "
        + _PREDICTED_AS.get(name, "as without it")
        for name in UNPREDICTED
        if by_name[name].any()
    ]
