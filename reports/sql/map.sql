-- Grain: one row per setting, world_size, tp and pp that was tried, predicted or refused.
-- Needs: contenders, refused
-- The best of all other axes; what ran goes before what is predicted. status: ok, or the outcome of
-- the layouts that failed, or refused. text: the choices of the best layout beside tp and pp.
-- value: mfu where a peak is published, else tokens_per_s_per_gpu. share_of_best: over the cells of
-- the same series at that size. tried, failed: layouts of the cell.
with tried as (
    select
        *,
        count(*) over cell as tried,
        count(*) filter (where outcome != 'ok') over cell as failed,
        row_number() over (
            partition by setting_id, world_size, tp, pp
            order by outcome != 'ok', series = 'predicted', position
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
            if(activation_checkpointing = 'none', null, 'ckpt')
        ) as text,
        mfu, tokens_per_s, tokens_per_s_per_gpu, margin, peak_memory_bytes, exposed_comm_s, step_time_s,
        tried, failed
    from tried
    where rank = 1
),
turned_down as (
    select setting_id, world_size, tp, pp, count(*) as tried
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
select setting_id, null as series, world_size, tp, pp, 'refused' as status, tried, tried as failed
from turned_down
anti join cells using (setting_id, world_size, tp, pp)
order by setting_id, world_size, tp, pp
