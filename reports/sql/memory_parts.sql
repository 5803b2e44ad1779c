-- Grain: one row per comparison group, size, layout and part of its predicted memory.
-- Of the first 15 layouts of a size, see `place` of `estimates`.
-- bytes: of the part.   from_bytes, to_bytes: where it lies in the stack.   total_bytes: their sum.
-- memory_from: predicted or rehearsed.
-- peak_phase: the phase of a step in which these parts are held; null where phases are not
-- distinguished.
-- peak_memory_bytes: measured, else null.   capacity_bytes: of the GPU.
with parts as (
    select
        estimates.group_id, estimates.world_size, estimates.layout_name, estimates.place,
        estimates.outcome, estimates.source, estimates.peak_memory_bytes,
        predictions.fits_chance, predictions.capacity_bytes,
        predictions.predicted_peak_phase as peak_phase, predictions.memory_from,
        unnest([
            {'part_order': 0, 'part': 'weights', 'bytes': weights_bytes},
            {'part_order': 1, 'part': 'gradients', 'bytes': gradients_bytes},
            {'part_order': 2, 'part': 'optimizer', 'bytes': optimizer_bytes},
            {'part_order': 3, 'part': 'activations', 'bytes': activations_bytes},
            {'part_order': 4, 'part': 'logits and rest',
                'bytes': logits_bytes + buffers_bytes},
            {'part_order': 5, 'part': 'fragmentation', 'bytes': fragmentation_bytes}
        ], recursive := true)
    from estimates
    join planned_points using (group_id, world_size, layout)
    join study.predictions as predictions using (point_id)
    where speaks and place <= 15 and predictions.weights_bytes is not null
        and planned_points.repeat = 0
)
select
    group_id, world_size, layout_name, place, outcome, source, part_order, part, bytes,
    coalesce(sum(bytes) over parts_before, 0)::bigint as from_bytes,
    from_bytes + bytes as to_bytes,
    sum(bytes) over (partition by group_id, world_size, place)::bigint as total_bytes,
    peak_phase, memory_from, peak_memory_bytes, fits_chance as fits_probability, capacity_bytes
from parts
where bytes > 0
window parts_before as (
    partition by group_id, world_size, place order by part_order
    rows between unbounded preceding and 1 preceding
)
order by group_id, world_size, place, part_order
