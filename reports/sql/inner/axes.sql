-- Grain: one row per setting, axis on which its layouts differ, and layout: the one list of axes.
-- Needs: choices
-- axis: as tables name it. level: the choice; place: orders the levels of an axis.
-- words, short: how a text and a chart say the choice; null where it goes without saying.
-- otherwise: what a chart says where the others' choice does not go without saying.
-- degree: on the first of the two lines of a chart's label. axis_order: as people say them.
with said as (
    select
        setting_id,
        layout,
        unnest([
            {'axis_order': 1, 'axis': 'tp', 'place': tp::double, 'level': tp::varchar,
                'words': 'tp ' || tp, 'short': 'tp ' || tp, 'otherwise': null},
            {'axis_order': 2, 'axis': 'pp', 'place': pp::double, 'level': pp::varchar,
                'words': 'pp ' || pp, 'short': 'pp ' || pp, 'otherwise': null},
            {'axis_order': 3, 'axis': 'cp', 'place': cp::double, 'level': cp::varchar,
                'words': 'cp ' || cp, 'short': 'cp ' || cp, 'otherwise': null},
            {'axis_order': 4, 'axis': 'schedule',
                'place': list_position(['1f1b', 'dualpipev'], pipeline_schedule)::double,
                'level': pipeline_schedule, 'words': pipeline_schedule,
                'short': pipeline_schedule, 'otherwise': null},
            {'axis_order': 5, 'axis': 'ZeRO', 'place': zero_stage::double,
                'level': zero_stage::varchar, 'words': 'ZeRO ' || zero_stage,
                'short': 'Z' || zero_stage, 'otherwise': null},
            {'axis_order': 6, 'axis': 'ZeRO shard',  -- null: over all dp ranks, the largest
                'place': coalesce(zero_shard_size, 2 ** 31)::double,
                'level': coalesce(zero_shard_size::varchar, 'all'),
                'words': 'shard ' || zero_shard_size, 'short': 'sh ' || zero_shard_size,
                'otherwise': 'no sh'},
            {'axis_order': 7, 'axis': 'optimizer offload',
                'place': list_position(['none', 'cpu'], optimizer_offload)::double,
                'level': optimizer_offload,
                'words': if(optimizer_offload = 'none', null, 'optimizer on ' || optimizer_offload),
                'short': if(optimizer_offload = 'none', null, 'offload'), 'otherwise': 'no offload'},
            {'axis_order': 8, 'axis': 'sequence parallel', 'place': sequence_parallel::double,
                'level': if(sequence_parallel, 'on', 'off'),
                'words': if(sequence_parallel, 'sequence parallel', null),
                'short': if(sequence_parallel, 'sp', null), 'otherwise': 'no sp'},
            {'axis_order': 9, 'axis': 'micro-batch', 'place': micro_batch_size::double,
                'level': micro_batch_size::varchar, 'words': 'micro-batch ' || micro_batch_size,
                'short': 'mb ' || micro_batch_size, 'otherwise': null},
            {'axis_order': 10, 'axis': 'checkpointing',
                'place': list_position(['none', 'selective', 'full'], activation_checkpointing)::double,
                'level': activation_checkpointing,
                'words': if(activation_checkpointing = 'none', null,
                    activation_checkpointing || ' checkpointing'),
                'short': if(activation_checkpointing = 'none', null, 'ckpt'),
                'otherwise': 'no ckpt'},
            {'axis_order': 11, 'axis': 'attention', 'place': list_position(['math',
                    'fused_softmax', 'flash1', 'flash2', 'flash3', 'flash4', 'cudnn'], attention)::double,
                'level': attention, 'words': attention, 'short': attention, 'otherwise': null},
            {'axis_order': 12, 'axis': 'fused norm', 'place': fused_norm::double,
                'level': if(fused_norm, 'on', 'off'), 'words': if(fused_norm, 'fused norm', null),
                'short': if(fused_norm, 'fn', null), 'otherwise': 'no fn'},
            {'axis_order': 13, 'axis': 'fused rope', 'place': fused_rope::double,
                'level': if(fused_rope, 'on', 'off'), 'words': if(fused_rope, 'fused rope', null),
                'short': if(fused_rope, 'fr', null), 'otherwise': 'no fr'},
            {'axis_order': 14, 'axis': 'fused mlp', 'place': fused_mlp::double,
                'level': if(fused_mlp, 'on', 'off'), 'words': if(fused_mlp, 'fused mlp', null),
                'short': if(fused_mlp, 'fm', null), 'otherwise': 'no fm'},
            {'axis_order': 15, 'axis': 'fused cross-entropy', 'place': fused_cross_entropy::double,
                'level': if(fused_cross_entropy, 'on', 'off'),
                'words': if(fused_cross_entropy, 'fused cross-entropy', null),
                'short': if(fused_cross_entropy, 'fce', null), 'otherwise': 'no fce'},
            {'axis_order': 16, 'axis': 'compile', 'place': compile::double,
                'level': if(compile, 'on', 'off'), 'words': if(compile, 'compiled', null),
                'short': if(compile, 'comp', null), 'otherwise': 'no comp'},
            {'axis_order': 17, 'axis': 'precision',
                'place': list_position(['fp32', 'fp16', 'bf16', 'fp8'], precision)::double,
                'level': precision, 'words': precision, 'short': precision, 'otherwise': null}
        ], recursive := true)
    from choices
),
differing as (
    select setting_id, axis
    from said
    group by setting_id, axis
    having min(place) != max(place)
)
select
    said.*,
    axis_order <= 3 as degree
from said
semi join differing using (setting_id, axis)
