-- Grain: one row per measured point that ran and kept its losses.
-- Needs: planned
-- Layouts of one training (same model, routing, seed, batch, length, precision, clipping, steps and
-- stack) start from the same weights and see the same tokens, so their losses are the same but for
-- rounding. Routing says which experts a token meets.
-- layouts: how many of that training, each with its size, were compared; repeats count once.
-- largest_gap: ratio, the farthest of the first ten losses from the median of the layouts at that
-- step (of losses below 1 the difference); at_step counts from 1. The median is what most agree on: an
-- odd one among three or more is apart alone, of two that differ neither is known to be right.
-- tolerance: fp32 one in a thousand, thousands of times what the tests of parity find between layouts
-- (3e-7); 16 bits one in a hundred, five roundings of bf16 (2^-9); fp8 one in twenty (2^-4 each).
-- agrees: largest_gap <= tolerance; null where no other layout ran the training.
with kept as (
    select
        point_id, list_slice(losses, 1, 10) as losses,
        hash(
            model, routing, cluster, gpu, total_params, seed, global_batch_size, seq_length, precision,
            gradient_clipping, len(losses), stack_fingerprint
        ) as training,
        hash(layout, world_size) as placed,
        case precision when 'fp32' then 1e-3 when 'fp8' then 5e-2 else 1e-2 end as tolerance
    from study.rows
    where series = 'measured' and outcome = 'ok' and len(losses) > 0
        and point_id in (select point_id from planned)
),
curves as (
    select
        training,
        [
            median(losses[1]), median(losses[2]), median(losses[3]), median(losses[4]),
            median(losses[5]), median(losses[6]), median(losses[7]), median(losses[8]),
            median(losses[9]), median(losses[10])
        ] as losses
    from kept
    group by training, placed
),
middle as (
    select
        training,
        count(*) as layouts,
        [
            median(losses[1]), median(losses[2]), median(losses[3]), median(losses[4]),
            median(losses[5]), median(losses[6]), median(losses[7]), median(losses[8]),
            median(losses[9]), median(losses[10])
        ] as losses
    from curves
    group by training
),
gaps as (
    select
        point_id, tolerance, layouts,
        list_transform(kept.losses, lambda loss, step:
            abs(loss - middle.losses[step]) / greatest(abs(middle.losses[step]), 1)
        ) as gaps,
        list_max(gaps) as largest_gap
    from kept
    join middle using (training)
)
select
    point_id,
    layouts,
    largest_gap,
    list_position(gaps, largest_gap) as at_step,
    tolerance,
    if(layouts > 1, largest_gap <= tolerance, null) as agrees
from gaps
