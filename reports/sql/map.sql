-- Grain: one row per setting, world_size, tp and pp that was tried, predicted, refused or skipped.
-- Needs: contenders, refused
-- The best layout with that tp and pp; what ran goes before what is predicted.
-- status: ok, or the outcome if all failed, refused, or skipped (by a guided sweep).
-- text: its choices besides tp and pp.
-- share_of_best: tokens_per_s_per_gpu over that of the best cell of the same series and size.
-- tried, failed: layouts of the cell.
with ranked as (
    select
        *,
        count(distinct layout) over cell as tried,
        count(distinct layout) filter (where outcome != 'ok') over cell as failed,
        row_number() over (
            partition by setting_id, world_size, tp, pp order by outcome != 'ok', place
        ) as rank
    from contenders
    where drawn
    window cell as (partition by setting_id, world_size, tp, pp)
),
cells as (
    select
        setting_id, series, world_size, tp, pp, outcome as status, layout_name,
        concat_ws(
            ' ', if(cp > 1, 'cp ' || cp, null), 'Z' || zero_stage, 'mb ' || micro_batch_size,
            if(sequence_parallel, 'sp', null),
            if(activation_checkpointing != 'none', 'ckpt', null)  -- nothing where it is unstated
        ) as text,
        mfu, tokens_per_s, tokens_per_s_per_gpu, margin, peak_memory_bytes,
        exposed_comm_s, step_time_s,
        tried, failed
    from ranked
    where rank = 1
),
refused_cells as (
    select
        setting_id, world_size, tp, pp,
        count(*) as tried,
        count(*) filter (where not skipped) as failed,
        if(bool_or(skipped), 'skipped', 'refused') as status
    from refused
    group by setting_id, world_size, tp, pp
)
select
    cells.*,
    case when status = 'ok' then tokens_per_s_per_gpu / max(
        case when status = 'ok' then tokens_per_s_per_gpu end
    ) over (partition by setting_id, world_size, series) end as share_of_best
from cells
union all by name
select setting_id, null as series, world_size, tp, pp, status, tried, failed
from refused_cells
anti join cells using (setting_id, world_size, tp, pp)
order by setting_id, world_size, tp, pp
