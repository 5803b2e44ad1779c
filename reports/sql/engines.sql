-- Grain: one row per comparison group, size, two engines, and a layout that both were asked for.
-- ratio: tokens_per_s under to_engine over that under from_engine, with equal choices on all other
-- axes.   ratio_low, ratio_high: its interval of `level`; the engines differ where it excludes 1.
-- source: of the less firm of the two.   Other columns: see `engine_pairs`.
select
    engine_pairs.* exclude (from_cell, to_cell),
    from_rates.tokens_per_s as from_tokens_per_s,
    to_rates.tokens_per_s as to_tokens_per_s,
    engine_ratios.* exclude (from_cell, to_cell)
from engine_pairs
left join engine_ratios using (from_cell, to_cell)
left join estimates as from_rates on from_rates.cell_id = from_cell
left join estimates as to_rates on to_rates.cell_id = to_cell
order by
    group_id, world_size,
    greatest(from_rates.tokens_per_s, to_rates.tokens_per_s) desc nulls last, layout_name
