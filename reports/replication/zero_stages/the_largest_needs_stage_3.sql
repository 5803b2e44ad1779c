-- Claim: The 13B is trained with stage 3.
-- Source: arXiv 2310.05350
-- Holds: on one node ZeRO-3 is the only stage with which a 13B fits without checkpointing.
with fits as (
    select group_id, source, world_size, zero_stage, bool_or(outcome = 'ok') as fits
    from estimates
    where activation_checkpointing = 'none' and zero_shard_size is null and world_size = 8
        and outcome in ('ok', 'oom')
    group by all
)
select
    source,
    format('{} on {} of {}', model, world_size, cluster) as subject,
    coalesce('fits with stage ' || string_agg(zero_stage, ', ' order by zero_stage) filter (where fits), 'fits with no stage')
        as observed,
    coalesce(bool_and(zero_stage = 3) filter (where fits), false) as holds
from fits
join comparison_groups using (group_id)
where total_params > 12e9
group by group_id, source, world_size, model, cluster
having count(*) > 1
