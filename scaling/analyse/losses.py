"""Whether the losses of a row are those of its training, whatever the layout."""

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

Values = npt.NDArray[np.float64]

_STEPS = 10  # the first losses of a row, which are compared
# Layouts of one training (same model, routing, seed, batch, length, precision, clipping, steps and
# stack) start from the same weights and see the same tokens. Routing says which experts a token
# meets. tolerance: fp32 one in a thousand, thousands of times what the tests of parity find between
# layouts (3e-7); 16 bits one in a hundred, five roundings of bf16 (2^-9); fp8 one in twenty (2^-4
# each).
_KEPT = f"""
select
    point_id,
    list_resize(losses, {_STEPS})::double[{_STEPS}] as losses,
    hash(
        model, routing, cluster, gpu, total_params, seed, global_batch_size, seq_length, precision,
        gradient_clipping, len(losses), stack_fingerprint
    ) as training,
    hash(training, layout, world_size) as placed,
    case precision when 'fp32' then 1e-3 when 'fp8' then 5e-2 else 1e-2 end as tolerance
from study.planned_rows
where series = 'measured' and outcome = 'ok' and len(losses) > 0
"""


def compared_losses(connection: duckdb.DuckDBPyConnection) -> pa.Table:
    """One row per measured point that ran and kept its losses: are they those of its training?

    `layouts`: how many of that training, each with its size, were compared; repeats count once.
    `largest_gap`: ratio, the farthest of the first ten losses from the median of the layouts at
    that step (of losses below 1 the difference), which is `at_step`, counted from 1. The median is
    what most agree on: an odd one among three or more is apart alone, of two that differ neither is
    known to be right. `agrees`: largest_gap <= tolerance; null where no other layout ran the
    training.
    """
    kept = connection.sql(_KEPT).to_arrow_table()
    numbers = kept["losses"].combine_chunks().flatten().to_numpy(zero_copy_only=False)
    losses = np.asarray(numbers, dtype=float).reshape(-1, _STEPS)  # NaN beyond the last
    training = kept["training"].to_numpy()
    curves, firsts, _ = medians(losses, kept["placed"].to_numpy())
    middles, curves_of, layouts = medians(curves, training[firsts])
    trainings = training[firsts][curves_of]
    each = np.searchsorted(trainings, training)
    gaps = losses - middles[each]
    gaps = np.abs(gaps, out=gaps)
    gaps /= np.maximum(np.abs(middles), 1)[each]
    farthest = np.nanargmax(gaps, axis=1) if len(gaps) else np.zeros(0, dtype=int)
    largest = gaps[np.arange(len(gaps)), farthest]
    layouts = layouts[each]
    agrees = pa.array(largest <= kept["tolerance"].to_numpy(), mask=layouts < 2)
    return pa.table(
        {
            "point_id": kept["point_id"], "layouts": layouts, "largest_gap": largest,
            "at_step": (farthest + 1).astype(np.int32), "tolerance": kept["tolerance"],
            "agrees": agrees,
        }
    )  # fmt: skip


def medians(
    rows: Values, groups: npt.NDArray[np.uint64]
) -> tuple[Values, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The median of each column over the rows of each group, by the groups in rising order.

    Groups of as many rows are sorted together: a state a group and column, as SQL keeps it, takes
    ten times as long where groups are small.

    Returns:
        The medians, (groups, columns); a row of each group; how many rows it has.
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
