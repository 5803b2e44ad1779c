-- Grain: one row per comparison group: all that must be equal before two layouts may be compared.
-- kept_batch_size: sequences per step (strong scaling) or per GPU and step (weak scaling).
-- kept_choices: the choices on axes that belong to the comparison group (`setting` in
-- scaling/layout/axes.py, for example routing), in words; empty if all are at their default.
-- gpu_memory_bytes: capacity of one device; null if no figure is published.
-- gpu_tdp_w: W, from the data sheet.   usd_per_gpu_hour: null if config/clusters.yaml has none.
-- The sizes of the model's shape (scaling/layout/shapes.py) stand under their names.
-- gpu, vendor, gpus_per_node, total_params, the shape: null if every combination of the comparison group was refused.
with planned_or_refused as (
    select model, cluster, study_kind, seq_length, kept_batch_size, kept_choices,
        gpu, gpus_per_node, total_params, columns(lambda name: name in getvariable('shape'))
    from study.points
    union all by name
    select model, cluster, study_kind, seq_length, kept_batch_size, kept_choices
    from study.refused
),
grouped as (
    select
        model, cluster, study_kind, seq_length, kept_batch_size, kept_choices,
        any_value(gpu) as gpu,
        any_value(gpus_per_node) as gpus_per_node,
        any_value(total_params) as total_params,
        any_value(columns(lambda name: name in getvariable('shape')))
    from planned_or_refused
    group by all
)
select
    row_number() over (
        order by total_params nulls last, model, cluster, study_kind, seq_length, kept_batch_size,
            kept_choices
    ) as group_id,
    grouped.*,
    gpus.vendor,
    gpus.memory_bytes as gpu_memory_bytes,
    gpus.tdp_w as gpu_tdp_w,
    clusters.usd_per_gpu_hour
from grouped
left join catalogue.gpus on gpus.name = grouped.gpu
left join catalogue.clusters on clusters.name = grouped.cluster
order by group_id
