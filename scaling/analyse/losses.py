"""Check that all layouts of one training have the same losses and the same first gradient norm."""

import duckdb
import numpy as np
import pyarrow as pa

from scaling.analyse.posterior import Integers
from scaling.arrays import Floats

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
    curves, row, repeats, curve = _medians(values, placed)
    centres, member, layouts, of_curve = _medians(curves, training[row])
    of_row, row_of = of_curve[curve], row[member]
    scale = np.maximum(np.abs(centres), [np.finfo(float).tiny, *[1.0] * _STEPS])
    # rounding: the median distance of repeats from their layout, of layouts of one process from
    # their median; as gaps in ratios of the centre, of losses below 1 in differences
    again = np.flatnonzero(repeats[curve] > 1)
    alone = np.flatnonzero(sizes[row] == 1)
    alone = alone[np.bincount(of_curve[alone])[of_curve[alone]] >= _FEWEST_ALONE]
    middles, _, _, of_alone = _medians(curves[alone], of_curve[alone])
    rounding = np.zeros_like(centres)
    for apart, of in (
        (values[again] - curves[curve[again]], of_row[again]),
        (curves[alone] - middles[of_alone], of_curve[alone]),
    ):
        distances, first, *_ = _medians(np.abs(apart), of)
        at = of[first]
        rounding[at] = np.fmax(rounding[at], distances / scale[at])
    rounding[:, 1:] = np.maximum.accumulate(rounding[:, 1:], axis=1)  # of losses, not of the norm
    growing = np.outer(loss_bound[row_of], _GROWTH ** np.arange(_STEPS))
    bounds = np.fmax(np.column_stack([norm_bound[row_of], growing]), _SPREADS * rounding)
    gaps = np.abs(values - centres[of_row]) / scale[of_row]
    used = np.nan_to_num(gaps / bounds[of_row])
    beyond = used > 1
    outside = beyond.any(axis=1)
    at = np.where(outside, beyond.argmax(axis=1), used.argmax(axis=1))
    unequal = np.array([equal is False for equal in rows["replicas_agree"].to_pylist()], dtype=bool)
    compared = layouts[of_row]
    return pa.table(
        {
            "point_id": rows["point_id"], "group_id": rows["group_id"],
            "world_size": rows["world_size"], "layout": rows["layout"], "layouts": compared,
            "differs_in": np.where(unequal, "replicas", np.where(at == 0, "grad_norm", "loss")),
            "at_step": pa.array(np.maximum(at, 1).astype(np.int32), mask=unequal),
            "gap": pa.array(np.nan_to_num(gaps[np.arange(len(at)), at]), mask=unequal),
            "bound": pa.array(bounds[of_row, at], mask=unequal),
            "agrees": pa.array(~(outside | unequal), mask=(compared < 2) & ~unequal),
        }
    )  # fmt: skip


def _medians(rows: Floats, groups: Integers) -> tuple[Floats, Integers, Integers, Integers]:
    """Median of each column over the rows of each group without NaN, groups in rising order.

    Groups of equal size are sorted together: SQL, which keeps a state per group and column, takes
    ten times as long for small groups.

    Returns:
        The medians, (groups, columns); the index of one row per group; rows per group; the group
        of each row.
    """
    order = np.argsort(groups)
    starts = np.flatnonzero(np.diff(groups[order], prepend=~groups[order[:1]]))
    counts = np.diff(starts, append=len(order))
    middles, group = np.empty((len(starts), rows.shape[1])), np.empty_like(order)
    group[order] = np.repeat(np.arange(len(starts)), counts)
    for count in np.unique(counts):
        of_size = np.flatnonzero(counts == count)
        ranked = rows[order[starts[of_size, None] + np.arange(count)]]
        ranked.sort(axis=1)  # NaN comes last
        known = np.isfinite(ranked).sum(axis=1, keepdims=True)
        low = np.take_along_axis(ranked, (known - 1) // 2, axis=1)
        high = np.take_along_axis(ranked, known // 2, axis=1)
        middles[of_size] = (low + high)[:, 0] / 2
    return middles, order[starts], counts, group
