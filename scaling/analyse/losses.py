"""Check that all layouts of one training have the same losses and the same first gradient norm."""

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

Values = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.uint64]

_STEPS = 10  # how many of the first losses are compared
_GROWTH = 2.0  # of rounding from one step to the next
_SPREADS = 10.0  # rounding that rows show is allowed this often: layouts differ by more
_FEWEST_ALONE = 3  # layouts of one process that show what rounding is: of two both may be wrong
# Layouts of one training (same model, routing, seed, batch, length, precision, clipping and stack)
# start from the same weights and see the same tokens. The steps that all of them ran are compared;
# where steps stop by themselves these differ in number. loss_bound, norm_bound: of the first loss
# and of the first gradient norm. On a GPU eager, fused and compiled layouts differ in bf16 by 4e-5
# and 6e-4 there, and in fp32 the layouts of the parity tests by 2e-7 and 1e-5.
_ROWS = f"""
with trained as (
    select
        point_id, group_id, world_size, losses, grad_norms, replicas_agree,
        latest_rows.layout, precision,
        hash(
            model, routing, cluster, gpu, total_params, seed, global_batch_size, seq_length,
            precision, gradient_clipping, stack_fingerprint
        ) as training
    from study.latest_rows join (select point_id, group_id from planned_points) using (point_id)
    where source = 'measured' and outcome = 'ok' and len(losses) > 0
),
shortest as (select training, min(len(losses)) as steps from trained group by training)
select
    point_id, group_id, world_size, layout,
    list_resize([grad_norms[1]] || losses[:steps], {1 + _STEPS})::double[{1 + _STEPS}] as told,
    replicas_agree,
    training,
    hash(training, layout, world_size) as placed,
    case when precision = 'fp32' then 1e-4 when precision in ('bf16', 'fp16') then 1e-3 else 1e-2
    end as loss_bound,
    case when precision = 'fp32' then 1e-3 when precision in ('bf16', 'fp16') then 2e-2 else 1e-1
    end as norm_bound
from trained join shortest using (training)
"""


def compared_losses(connection: duckdb.DuckDBPyConnection) -> pa.Table:
    """One row per measured point that ran and kept its losses: do they agree with its training?

    `layouts`: how many of the training, each at its size, were compared; repeats count once.
    `differs_in`: replicas if those of this point hold unequal weights. Else grad_norm or loss,
    whichever left its bound first; if neither did, that which came nearest. `at_step`: there,
    counted from 1. `gap`: ratio, the distance from the median over the layouts (for losses below 1
    the difference). `bound`: the distance that rounding explains. It doubles with every step, and
    is larger where repeats or layouts of one process show more. These three are null for replicas.
    `agrees`: equal replicas, and gap <= bound at every step; null if no other layout ran the
    training. A wrong layout among three or more stands out alone; of two that differ both do. It is
    a mark: the row stays measured.
    """
    rows = connection.sql(_ROWS).to_arrow_table()
    flat = rows["told"].combine_chunks().flatten().to_numpy(zero_copy_only=False)
    values = np.asarray(flat, dtype=float).reshape(-1, 1 + _STEPS)  # NaN after the last
    training, placed, sizes, norm_bound, loss_bound = (
        rows[name].to_numpy()
        for name in ("training", "placed", "world_size", "norm_bound", "loss_bound")
    )
    gaps, rounding, layouts = _compared(values, training, placed, sizes)
    bounds = np.column_stack([norm_bound, np.outer(loss_bound, _GROWTH ** np.arange(_STEPS))])
    bounds = np.fmax(bounds, _SPREADS * rounding)
    used = np.nan_to_num(gaps / bounds)
    outside = used > 1
    at = np.where(outside.any(axis=1), outside.argmax(axis=1), used.argmax(axis=1))
    row = np.arange(len(rows))
    unequal = np.array([equal is False for equal in rows["replicas_agree"].to_pylist()], dtype=bool)
    return pa.table(
        {
            "point_id": rows["point_id"], "group_id": rows["group_id"],
            "world_size": rows["world_size"], "layout": rows["layout"], "layouts": layouts,
            "differs_in": np.where(unequal, "replicas", np.where(at == 0, "grad_norm", "loss")),
            "at_step": pa.array(np.maximum(at, 1).astype(np.int32), mask=unequal),
            "gap": pa.array(np.nan_to_num(gaps[row, at]), mask=unequal),
            "bound": pa.array(bounds[row, at], mask=unequal),
            "agrees": pa.array(
                ~(outside.any(axis=1) | unequal), mask=(layouts < 2) & ~unequal
            ),
        }
    )  # fmt: skip


def _compared(
    values: Values, training: Numbers, placed: Numbers, sizes: Numbers
) -> tuple[Values, Values, npt.NDArray[np.int64]]:
    """Gaps of rows from their training's median layout, its rounding, and its number of layouts.

    Two things show the rounding: the median distance of repeats from their layout, and of layouts
    of one process from each other. Distances are ratios of the median, of losses below 1
    differences.
    """
    curves, first, repeats = group_medians(values, placed)
    centres, one, layouts = group_medians(curves, training[first])
    trainings = training[first][one]
    scale = np.maximum(np.abs(centres), [np.finfo(float).tiny, *[1.0] * _STEPS])
    of_curve = np.searchsorted(placed[first], placed)
    again = np.flatnonzero(repeats[of_curve] > 1)
    alone = np.flatnonzero(sizes[first] == 1)
    _, of_alone, count = np.unique(training[first][alone], return_inverse=True, return_counts=True)
    alone = alone[count[of_alone] >= _FEWEST_ALONE]
    rounding = np.zeros_like(centres)
    for shown, of in (
        (np.abs(values - curves[of_curve])[again], training[again]),
        (_from_each_other(curves[alone], training[first][alone]), training[first][alone]),
    ):
        distances, member, _ = group_medians(shown, of)
        at = np.searchsorted(trainings, of[member])
        rounding[at] = np.fmax(rounding[at], distances / scale[at])
    rounding[:, 1:] = np.maximum.accumulate(rounding[:, 1:], axis=1)  # of losses, not of the norm
    of_row = np.searchsorted(trainings, training)
    gaps = np.abs(values - centres[of_row]) / scale[of_row]
    return gaps, rounding[of_row], layouts[of_row]


def _from_each_other(curves: Values, groups: Numbers) -> Values:
    """Distances of curves from the median of their group."""
    middles, one, _ = group_medians(curves, groups)
    return np.abs(curves - middles[np.searchsorted(groups[one], groups)])


def group_medians(
    rows: Values, groups: Numbers
) -> tuple[Values, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Median of each column over the rows of each group without NaN, groups in rising order.

    Groups of equal size are sorted together: SQL, which keeps a state per group and column, takes
    ten times as long for small groups.

    Returns:
        The medians, (groups, columns); the index of one row per group; rows per group.
    """
    order = np.argsort(groups)
    starts = np.flatnonzero(np.diff(groups[order], prepend=~groups[order[:1]]))
    counts = np.diff(starts, append=len(order))
    middles = np.empty((len(starts), rows.shape[1]))
    for count in np.unique(counts):
        of_size = np.flatnonzero(counts == count)
        members = order[starts[of_size, None] + np.arange(count)]
        ranked = np.sort(rows[members], axis=1)  # NaN comes last
        known = np.isfinite(ranked).sum(axis=1, keepdims=True)
        low = np.take_along_axis(ranked, (known - 1) // 2, axis=1)
        high = np.take_along_axis(ranked, known // 2, axis=1)
        middles[of_size] = (low + high)[:, 0] / 2
    return middles, order[starts], counts
