-- Grain: one row per comparison group, size, layout, class and software stack, over all its repeats.
-- Everything that later tables need of a layout at a size, in one pass over what may be a million
-- rows.
-- source: the label of the class; measured if any of its runs is.
-- speaks: this cell speaks for the layout at the size: of the first class with a run of the layout,
-- then of the stack with the most runs of the comparison group.
-- leads: it speaks, ran or fits, and its class is the first one at the size.
with pooled as (
    select
        cell_id, group_id, world_size, layout, class, stack_fingerprint,
        arg_min(source, list_position(getvariable('source_order'), source)) as source,
        any_value(dp) as dp,
        any_value(global_batch_size) as global_batch_size,
        any_value(gradient_accumulation_steps) as gradient_accumulation_steps,
        any_value(tokens_per_step) as tokens_per_step,
        count(*) as runs,
        count(*) filter (where outcome = 'ok') as ok_runs,
        if(ok_runs > 0, 'ok', mode(outcome order by outcome)) as outcome,
        any_value(error_message order by repeat) filter (where outcome != 'ok') as error_message,
        avg(ln(tokens_per_s)) as mean_log_rate,
        max(log_sigma) as log_sigma,
        any_value(model_flops_per_token) as model_flops_per_token,
        any_value(hardware_flops_per_token) as hardware_flops_per_token,
        any_value(peak_flop_per_s) as peak_flop_per_s,
        max(peak_memory_bytes) filter (where outcome = 'ok') as peak_memory_bytes,
        max(predicted_memory_bytes) as predicted_memory_bytes,
        max(capacity_bytes) as capacity_bytes,
        any_value(memory_meter) as memory_meter,
        median(energy_j) filter (where outcome = 'ok') as energy_j,
        median(mean_power_w) filter (where outcome = 'ok') as mean_power_w,
        median(compute_s) filter (where outcome = 'ok') as compute_s,
        median(comm_s) filter (where outcome = 'ok') as comm_s,
        median(exposed_comm_s) filter (where outcome = 'ok') as exposed_comm_s,
        median(idle_s) filter (where outcome = 'ok') as idle_s,
        max(predicted_common_sigma) as common_sigma,
        max(predicted_layout_sigma) as layout_sigma,
        max(predicted_size_sigma) as size_sigma,
        max(predicted_rest_sigma) as rest_sigma,
        if(class = 3, max(fits_chance), if(ok_runs > 0, 1, null)) as fits_probability,
        median(duration_s) as duration_s,
        max(load) as load,
        max(others_share) as others_share,
        max(suspended_s) as suspended_s,
        max(longest_step) as longest_step,
        max(slowdown_share) as slowdown_share,
        max(num_alloc_retries) as num_alloc_retries,
        bool_and(losses_agree) as losses_agree,
        max(started_at) as started_at
    from measurements
    group by cell_id, group_id, world_size, layout, class, stack_fingerprint
),
stacks as (
    select group_id, class, stack_fingerprint, sum(runs) as stack_runs
    from pooled
    group by group_id, class, stack_fingerprint
),
ranked as (
    select
        pooled.*,
        row_number() over (
            partition by group_id, world_size, layout
            order by class, ok_runs > 0 desc, stack_runs desc, stack_fingerprint
        ) = 1 as speaks
    from pooled
    join stacks using (group_id, class, stack_fingerprint)
)
select
    *,
    speaks and outcome = 'ok' and class = min(class) filter (where speaks and outcome = 'ok')
        over (partition by group_id, world_size) as leads
from ranked
