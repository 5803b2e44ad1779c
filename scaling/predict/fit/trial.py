"""Run one validation: calibrate on some rows of a table, predict the others, score them."""

import dataclasses
from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from scaling.cluster.hardware import Cluster
from scaling.errors import InputError, grouped_reasons
from scaling.foreign.arrays import Flags, Strings
from scaling.foreign.columns import Columns
from scaling.foreign.conditions import rows_where
from scaling.foreign.renaming import remarks_of
from scaling.layout.shapes import ModelShape
from scaling.predict.cost.model import predict
from scaling.predict.fit.calibrate import calibrate
from scaling.predict.fit.validation import Validation, validate
from scaling.predict.read.calibration import Calibration
from scaling.predict.read.observed import (
    Observed,
    impossible_rows,
    impossible_sentence,
    observed_of,
)
from scaling.predict.read.points import points_of


def trial(
    table: pa.Table,
    source: str,
    *,
    calibrate_where: str | None = None,
    test_where: str | None = None,
    models: Mapping[str, ModelShape] | None = None,
    clusters: Mapping[str, Cluster] | None = None,
) -> Validation:
    """Calibrate and test on rows of one table.

    Without `calibrate_where` data-sheet numbers are tested. Without `test_where` all rows that were
    not calibrated on are tested.

    Raises:
        InputError: a condition is wrong, or leaves nothing to test.
    """
    if not table.num_rows:
        raise InputError(f"{source}: holds no row under its header")
    columns = Columns(table, source)
    points = points_of(columns, models=models, clusters=clusters)
    observed = observed_of(columns, points)
    told = dict.fromkeys((*points.assumptions, *columns.assumptions))
    points = dataclasses.replace(points, assumptions=tuple(told))
    impossible = impossible_rows(columns, points)
    possible = np.ones(table.num_rows, dtype=bool)
    possible[list(impossible)] = False
    fitted = np.zeros(table.num_rows, dtype=bool)
    if calibrate_where is not None:
        fitted = rows_where(table, calibrate_where, source, "--calibrate-where")
    tested = ~fitted
    if test_where is not None:
        tested = rows_where(table, test_where, source, "--test-where")
    fitted, tested = fitted & possible, tested & possible
    if not tested.any():
        option = "narrow --calibrate-where" if test_where is None else "widen --test-where"
        raise InputError(f"{source}: no row is left to test; {option}")
    known = observed.ran | observed.out_of_memory | observed.ambiguous
    if not (tested & known).any():
        raise InputError(
            f"{source}: none of the {int(tested.sum())} rows to test ran or ran out of memory "
            "(step_time_s, tokens_per_s, outcome): nothing can be compared with predictions"
            + "".join(f"; {remark}" for remark in remarks_of(table))
        )
    calibration = None
    if fitted.any():
        part = columns.filter(fitted).in_their_order()  # as `calibrate`: folds deal rows in order
        part_points = points_of(part, models=models, clusters=clusters)
        calibration = calibrate(part_points, observed_of(part, part_points), source=source)
    prediction = predict(points, calibration)
    overall, groups = validate(points, observed, prediction, tested)
    return Validation(
        points=points,
        observed=observed,
        prediction=prediction,
        fitted=fitted,
        tested=tested,
        overall=overall,
        groups=groups,
        notes=[
            *_notes(fitted, tested, observed, calibration, points.note),
            *([impossible_sentence(impossible)] if impossible else []),
        ],
    )


def _notes(
    fitted: Flags,
    tested: Flags,
    observed: Observed,
    calibration: Calibration | None,
    reasons: Strings,
) -> list[str]:
    notes = []
    if calibration is None or not calibration.stacks:
        notes.append("nothing was calibrated: data-sheet numbers")
    both = int((fitted & tested).sum())
    if both:
        notes.append(f"{both} rows are in both parts: their errors flatter the model")
    ambiguous = int((tested & observed.ambiguous).sum())
    if ambiguous:
        notes.append(f"{ambiguous} rows failed by memory or crash, counted as out of memory")
    why = grouped_reasons(reason for reason in reasons[tested].tolist() if reason is not None)
    notes += [f"{rows} rows are set aside: {reason}" for rows, reason in why]
    return notes
