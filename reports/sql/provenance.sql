-- Grain: one row per software stack; rows of different stacks are never averaged.
-- If the rows of a stack differ in a fact, its column lists all values.
with distinct_facts as (  -- equal rows first: sorting all rows once per fact takes far longer
    select
        stack_fingerprint, gpu_name, git_commit, scaling_version, python_version, torch_version,
        deepspeed_version, flash_attn_version, liger_kernel_version, driver_version, cuda_version,
        nccl_version, clock, memory_meter, hosts, seed,
        count(*) as measurements,
        min(started_at) as first_started_at,
        max(started_at) as last_started_at
    from study.rows semi join study.points using (point_id)
    group by all
)
select
    stack_fingerprint,
    sum(measurements)::bigint as measurements,
    array_to_string(list_sort(list(distinct columns(
        * exclude (stack_fingerprint, measurements, hosts, seed, first_started_at, last_started_at)
    ))), ', '),
    list_sort(list_distinct(flatten(list(hosts)))) as hosts,
    list_sort(list(distinct seed)) as seeds,
    min(first_started_at) as first_started_at,
    max(last_started_at) as last_started_at
from distinct_facts
group by stack_fingerprint
order by measurements desc, stack_fingerprint
