"""Rows that others published: taken as they are, nulls kept, kept apart, and never guessed."""

import dataclasses

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from scaling.analyse.warehouse import tabulate
from scaling.cluster.hardware import Cluster
from scaling.importing.rows import import_rows
from scaling.layout.layout import Layout
from scaling.published.table import published_table
from scaling.record.files import write_points, write_rows
from scaling.study.grid import Plan
from tests.analyse.conftest import SQL, TINY, read, some_point
from tests.nearly import nearly
from tests.report.large_study import predict_all
from tests.report.synthetic_study import point, timed_row
from tests.report.synthetic_study import row as row_of

pytestmark = pytest.mark.slow


def test_mfu_divides_by_the_peak_of_the_gpu_that_the_cluster_is_made_of(imported):
    weights = 2 * (4 * 64 * 64 + 2 * 64 * 256) + 1000 * 64
    flops = 6 * weights + 12 * 2 * 64 * 128
    (found,) = imported({})("measurements")
    assert found["mfu"] == pytest.approx(32 * 128 / 0.5 / 8 * flops / 312e12)
    own = Cluster(gpu="h100-80gb", gpus_per_node=8, nodes=1, source="here")
    (found,) = imported({"cluster": "ours"}, clusters={"ours": own}, study="b")("measurements")
    assert found["mfu"] == pytest.approx(32 * 128 / 0.5 / 8 * flops / 989.4e12)
    (found,) = imported({"cluster": "elsewhere"}, study="c")("measurements")
    assert found["mfu"] is None


def test_a_source_that_does_not_tell_oom_from_crash_is_not_called_an_oom(imported):
    (found,) = imported({"outcome": "oom_or_crash", "step_time_s": ""})("measurements")
    assert found["outcome"] == "error"
    assert "does not tell them apart" in found["error_message"]


def test_one_layout_twice_is_a_repeat_unless_frameworks_differ(imported):
    table = imported({}, {"step_time_s": "0.6"}, {"framework": "Other"})
    assert sorted(row["repeat"] for row in table("measurements")) == [0, 0, 1]
    assert sorted((row["runs"], row["stack_fingerprint"]) for row in table("estimates")) == [
        (1, "published: Other"),
        (2, "published: Somebody 1.0"),
    ]


def test_stated_and_unstated_choices_are_different_layouts(imported):
    table = imported({"activation_checkpointing": "none"}, {"activation_checkpointing": ""})
    names = {row["layout_name"]: row["runs"] for row in table("estimates")}
    assert list(names.values()) == [1, 1]
    stated, unstated = sorted(names)
    assert unstated == f"{stated} (checkpointing unstated)"


def test_sequence_parallel_without_tensor_parallel_is_the_same_layout(imported):
    table = imported(
        {"tp": "1", "sequence_parallel": "true"},
        {"tp": "1", "sequence_parallel": "false", "step_time_s": "0.6"},
    )
    (found,) = table("estimates")
    assert (found["runs"], found["sequence_parallel"], found["advised"]) == (2, False, True)


def test_published_rows_beside_measured_ones_keep_their_source(tmp_path, imported):
    one = some_point(1)
    write_points(tmp_path / "study", Plan(points=(one,), refusals=()))
    write_rows(tmp_path / "study" / "rows" / "a.parquet", [timed_row(one, 2.0)])
    table = imported({})
    assert sorted(row["source"] for row in table("measurements")) == ["measured", "published"]
    assert {row["points"] for row in table("progress")} == {1}


def test_stated_experts_count_the_flops_that_a_token_takes(imported):
    experts = {"num_experts": "8", "experts_per_token": "2", "expert_ffn_hidden_size": "16"}
    (mixed,) = imported(experts)("measurements")
    # attention, a router, two experts of two matrices
    weights = 2 * (4 * 64 * 64 + 64 * 8 + 2 * 2 * 64 * 16) + 1000 * 64
    flops = 6 * weights + 12 * 2 * 64 * 128
    assert mixed["mfu"] == pytest.approx(32 * 128 / 0.5 / 8 * flops / 312e12)
    (latent,) = imported(experts | {"attention_kind": "mla"}, study="b")("measurements")
    assert latent["mfu"] is None, "its attention is not stated"


def test_a_mixture_of_experts_has_no_flops_of_its_dense_shape(imported):
    (found,) = imported({"num_experts": "8"})("measurements")
    assert (found["mfu"], found["tokens_per_s"]) == (None, 32 * 128 / 0.5)


def planned(*, tp=2, pp=1, **choices):
    """The point of a study of 32 sequences on 8 GPUs, 2 a micro-batch."""
    dp = 8 // tp // pp
    layout = Layout(
        tp=tp, pp=pp, dp=dp, zero_stage=1, micro_batch_size=2, seq_length=128,
        gradient_accumulation_steps=16 // dp, **{"fused_norm": True, **choices},
    )  # fmt: skip
    return point(layout, model="tiny_gpt", shape=TINY, cluster="a100-80gb-dgx", gpu="a100-80gb")


def test_a_published_row_meets_the_prediction_of_the_layout_that_it_states(tmp_path, imported):
    """A plan says more of a layout than a publisher, and has another name for the model."""
    points = [
        planned(fused_rope=True), planned(tp=4), planned(fused_norm=False),
        planned(pp=2, compile=True), planned(pp=2),
    ]  # fmt: skip
    write_points(tmp_path / "study", Plan(points=tuple(points), refusals=()))
    predict_all(tmp_path / "study")
    table = imported({}, {"tp": "4", "fused_norm": "false"}, {"pp": "2"}, models={"tiny_gpt": TINY})
    assert {row["model"] for row in table("comparison_groups")} == {"tiny_gpt"}
    statistics = table("statistics")
    held = {(row["tp"], row["pp"]): row for row in statistics if row["source"] == "published"}
    foretold = {
        (row["tp"], row["pp"], row["fused_norm"], row["compile"]): row["predicted_tokens_per_s"]
        for row in statistics
        if row["source"] is None
    }
    # the only one that agrees; what it chooses beyond the usual is said
    assert held[2, 1]["predicted_tokens_per_s"] == foretold[2, 1, True, False] > 0
    assert held[2, 1]["unstated"] == ["fused rope"]
    assert held[4, 1]["predicted_tokens_per_s"] is None, "it states another norm"
    # of two that agree the usual one
    assert held[2, 2]["predicted_tokens_per_s"] == foretold[2, 2, True, False] > 0
    (accuracy,) = table("accuracy")
    assert (accuracy["compared"], accuracy["published"]) == (2, 2)
    assert accuracy["unstated"] == ["fused rope"]


def test_one_name_for_models_of_several_depths_is_several_models(tmp_path, imported):
    imported({}, {"num_layers": "4"})
    found = read(tmp_path / "study" / "published.parquet")
    assert {row["model"] for row in found} == {"gpt-2-layers", "gpt-4-layers"}


def test_no_table_depends_on_the_order_of_imported_rows(tmp_path):
    shipped = published_table()
    table = shipped.filter(pc.equal(shipped["table"], "dgxc"))
    place = table.column_names.index("step_time_s")
    tied = pc.round(table["step_time_s"], 0)  # of which many are equal
    table = table.set_column(place, "step_time_s", pc.max_element_wise(tied, 1.0))
    table = pa.concat_tables([table, table.slice(0, 30)])
    found = []
    for seed in (0, 1):
        order = np.random.default_rng(seed).permutation(table.num_rows)
        pq.write_table(table.take(order), tmp_path / f"{seed}.parquet")
        import_rows(tmp_path / f"{seed}.parquet", tmp_path / str(seed), {})
        tabulate(tmp_path / str(seed), SQL)
        files = sorted((tmp_path / str(seed) / "tables").glob("*.parquet"))
        found.append({file.stem: read(file) for file in files})
    one, other = found
    assert len(one["estimates"]) > 10
    for name in one:
        if name in ("measurements", "statistics"):  # one row each, in the order of the file
            one[name], other[name] = (sorted(rows, key=str) for rows in (one[name], other[name]))
        assert one[name] == nearly(other[name]), name


def test_published_rows_answer_if_all_measured_ones_failed(imported, tmp_path):
    table = imported({})
    mine = dataclasses.replace(planned(fused_norm=False), model="gpt")
    write_points(tmp_path / "study", Plan(points=(mine,), refusals=()))
    write_rows(tmp_path / "study" / "rows" / "all.parquet", [row_of(mine, "oom")])
    assert {one["group_id"] for one in table("measurements")} == {1}
    found = [(one["source"], one["speaks"], one["outcome"]) for one in table("estimates")]
    assert sorted(found) == [("measured", True, "oom"), ("published", True, "ok")]
    assert [one["source"] for one in table("sizes")] == ["published"]
