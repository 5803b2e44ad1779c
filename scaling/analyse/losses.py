"""Check that all layouts of one training have the same losses."""

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

Values = npt.NDArray[np.float64]

_STEPS = 10  # how many of the first losses are compared
# Layouts of one training (same model, routing, seed, batch, length, precision, clipping and stack)
# start from the same weights and see the same tokens. The steps that all of them ran are compared;
# where steps stop by themselves these differ in number. tolerance: for fp32 0.1 %, thousands of
# times the differences that the parity tests find between layouts (3e-7); for 16 bits 1 %, five
# roundings of bf16 (2^-9); for fp8 5 % (2^-4 per rounding).
_ROWS = f"""
with trained as (
    select
        point_id, losses, layout, world_size, precision,
        hash(
            model, routing, cluster, gpu, total_params, seed, global_batch_size, seq_length,
            precision, gradient_clipping, stack_fingerprint
        ) as training
    from study.latest_rows semi join planned_points using (point_id)
    where series = 'measured' and outcome = 'ok' and len(losses) > 0
),
shortest as (select training, min(len(losses)) as steps from trained group by training)
select
    point_id,
    list_resize(losses[:steps], {_STEPS})::double[{_STEPS}] as losses,
    training,
    hash(training, layout, world_size) as placed,
    case precision when 'fp32' then 1e-3 when 'fp8' then 5e-2 else 1e-2 end as tolerance
from trained join shortest using (training)
"""


def compared_losses(connection: duckdb.DuckDBPyConnection) -> pa.Table:
    """One row per measured point that ran and kept its losses: do they agree with its training?

    `layouts`: how many of the training, each at its size, were compared; repeats count once.
    `largest_gap`: ratio, the largest distance of the first ten losses from the median over the
    layouts at that step (for losses below 1 the difference); `at_step`: that step, counted from 1.
    A wrong layout among three or more stands out alone; of two that differ both do.
    `agrees`: largest_gap <= tolerance; null if no other layout ran the training.
    """
    rows = connection.sql(_ROWS).to_arrow_table()
    numbers = rows["losses"].combine_chunks().flatten().to_numpy(zero_copy_only=False)
    losses = np.asarray(numbers, dtype=float).reshape(-1, _STEPS)  # NaN after the last
    training = rows["training"].to_numpy()
    layout_losses, first_rows, _ = group_medians(losses, rows["placed"].to_numpy())
    training_losses, first_layouts, layouts = group_medians(layout_losses, training[first_rows])
    trainings = training[first_rows][first_layouts]
    training_of_row = np.searchsorted(trainings, training)
    gaps = losses - training_losses[training_of_row]
    gaps = np.abs(gaps, out=gaps)
    gaps /= np.maximum(np.abs(training_losses), 1)[training_of_row]
    largest_at = np.nanargmax(gaps, axis=1) if len(gaps) else np.zeros(0, dtype=int)
    largest_gap = gaps[np.arange(len(gaps)), largest_at]
    layouts = layouts[training_of_row]
    agrees = pa.array(largest_gap <= rows["tolerance"].to_numpy(), mask=layouts < 2)
    return pa.table(
        {
            "point_id": rows["point_id"], "layouts": layouts, "largest_gap": largest_gap,
            "at_step": (largest_at + 1).astype(np.int32), "tolerance": rows["tolerance"],
            "agrees": agrees,
        }
    )  # fmt: skip


def group_medians(
    rows: Values, groups: npt.NDArray[np.uint64]
) -> tuple[Values, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Median of each column over the rows of each group, groups in rising order.

    Groups of equal size are partitioned together: SQL, which keeps a state per group and column,
    takes ten times as long for small groups.

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
        low, high = (count - 1) // 2, count // 2
        ranked = np.partition(rows[members], (low, high), axis=1)
        middles[of_size] = (ranked[:, low] + ranked[:, high]) / 2
    return middles, order[starts], counts
