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
    string_agg(distinct gpu_name, ', ' order by gpu_name) as gpu_name,
    string_agg(distinct git_commit, ', ' order by git_commit) as git_commit,
    string_agg(distinct scaling_version, ', ' order by scaling_version) as scaling_version,
    string_agg(distinct python_version, ', ' order by python_version) as python_version,
    string_agg(distinct torch_version, ', ' order by torch_version) as torch_version,
    string_agg(distinct deepspeed_version, ', ' order by deepspeed_version) as deepspeed_version,
    string_agg(distinct flash_attn_version, ', ' order by flash_attn_version)
        as flash_attn_version,
    string_agg(distinct liger_kernel_version, ', ' order by liger_kernel_version)
        as liger_kernel_version,
    string_agg(distinct driver_version, ', ' order by driver_version) as driver_version,
    string_agg(distinct cuda_version, ', ' order by cuda_version) as cuda_version,
    string_agg(distinct nccl_version, ', ' order by nccl_version) as nccl_version,
    string_agg(distinct clock, ', ' order by clock) as clock,
    string_agg(distinct memory_meter, ', ' order by memory_meter) as memory_meter,
    list_sort(list_distinct(flatten(list(hosts)))) as hosts,
    list_sort(list(distinct seed)) as seeds,
    min(first_started_at) as first_started_at,
    max(last_started_at) as last_started_at
from distinct_facts
group by stack_fingerprint
order by measurements desc, stack_fingerprint
