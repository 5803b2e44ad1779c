"""The names of the layouts of a study."""

import duckdb
import pyarrow as pa

from scaling.analyse.layout_words import layout_words
from scaling.layout.axes import DEFAULTS, LayoutAxes, axes_of


def words(*layouts, gpus_per_node=8):
    choices = [
        DEFAULTS | layout | {"group_id": 1, "layout": str(number)}
        for number, layout in enumerate(layouts)
    ]
    kinds = {name: axis.kind for name, axis in axes_of(LayoutAxes).items()}
    types = {int: pa.int64(), bool: pa.bool_(), str: pa.string()}
    columns = {
        name: pa.array([one[name] for one in choices], types[kinds.get(name, str)])
        for name in choices[0]
        if name != "group_id"
    }
    with duckdb.connect() as connection:
        rows = pa.table(columns | {"group_id": [1] * len(choices)})
        connection.register("layout_choices", rows)
        setting = {"group_id": [1], "gpus_per_node": [gpus_per_node]}
        connection.register("comparison_groups", pa.table(setting))
        table = layout_words(connection).to_pylist()
    return [row["layout_name"] for row in sorted(table, key=lambda row: row["layout"])]


def test_a_layout_is_named_by_what_it_has_whatever_else_the_study_holds():
    one, other = {"zero_stage": 3, "zero_shard_size": 8}, {"zero_stage": 3, "micro_batch_size": 2}
    assert words(one) == ["ZeRO-3 in node"]
    assert words(one, other) == ["ZeRO-3 in node", "ZeRO-3, micro-batch 2"]


def test_layouts_of_one_name_state_what_their_publisher_omits():
    stated, unstated = {"tp": 8, "zero_stage": 0}, {"tp": 8, "zero_stage": None}
    assert words(stated, unstated) == ["tp 8", "tp 8 (ZeRO unstated)"]
