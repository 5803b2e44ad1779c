-- Claim: The layout has to be chosen anew at each scale: what is fastest on few GPUs is not fastest on many.
-- Source: arXiv 2411.13055 (its recommendation)
-- Holds: the fastest layouts at the smallest and at the largest size differ and the first is the best at
-- the largest with a probability below 5 %, or the first fails there. Not testable where the first was
-- not tried at the largest.
with fastest as (
    from estimates
    where tokens_per_s is not null
    qualify row_number() over (
        partition by group_id, source, world_size order by tokens_per_s desc, layout
    ) = 1
),
ends as (
    select
        group_id, source,
        min(world_size) as first_size, max(world_size) as last_size,
        arg_min(layout, world_size) as first_layout,
        arg_max(layout, world_size) as last_layout,
        arg_min(layout_name, world_size) as first_name,
        arg_max(layout_name, world_size) as last_name
    from fastest
    group by all
    having count(*) > 1
),
standings as (  -- null share: it failed
    select
        group_id, source, world_size, layout,
        max(tokens_per_s) / max(max(tokens_per_s)) over (
            partition by group_id, source, world_size
        ) as share,
        bool_or(p_best >= 0.05) as within_noise
    from estimates
    group by group_id, source, world_size, layout
)
select
    ends.source,
    format('{} on {}, {} tokens', model, cluster, seq_length) as subject,
    case when first_layout = last_layout then format('{} leads at {} and at {}', first_name, first_size, last_size)
        else format('{} leads at {}, {} at {}', first_name, first_size, last_name, last_size)
    end || case
        when there.share is null then '; the first one fails there'
        else format('; the first one gives {:.0f} % there', there.share * 100)
    end as observed,
    first_layout != last_layout and there.within_noise is not true as holds
from ends
join comparison_groups using (group_id)
join standings as there on (there.group_id, there.source, there.world_size, there.layout)
    = (ends.group_id, ends.source, last_size, first_layout)
