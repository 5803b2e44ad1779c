"""Rows that others published: taken as they are, nulls kept, told apart, and never guessed."""

import csv
import re

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from scaling.analyse.importing import NEEDED, import_rows
from scaling.analyse.warehouse import tabulate
from scaling.cluster.hardware import Cluster
from scaling.errors import InputError
from scaling.layout.layout import Layout
from scaling.layout.shapes import ModelShape
from scaling.published.table import published_table
from scaling.record.files import write_points, write_rows
from scaling.study.grid import Plan
from tests.analyse.conftest import SQL, read, some_point, tabulate_only
from tests.conftest import published_csv
from tests.nearly import nearly
from tests.report.large_study import predict_all
from tests.report.synthetic_study import point, timed_row

pytestmark = pytest.mark.slow

ROW = {
    "source": "a paper", "framework": "Somebody 1.0", "model": "gpt", "num_layers": "2",
    "hidden_size": "64", "num_heads": "4", "num_kv_heads": "4", "ffn_hidden_size": "256",
    "gated_mlp": "false", "vocab_size": "1000", "tied_embeddings": "true", "seq_length": "128",
    "cluster": "a100-80gb-dgx", "gpus_per_node": "8", "world_size": "8", "tp": "2", "pp": "1",
    "cp": "1", "zero_stage": "1", "sequence_parallel": "false", "micro_batch_size": "2",
    "global_batch_size": "32", "activation_checkpointing": "none", "attention": "flash2",
    "fused_norm": "true", "precision": "bf16", "outcome": "ok", "step_time_s": "0.5",
}  # fmt: skip


@pytest.fixture
def imported(tmp_path):
    """Import rows, each ROW with changes, into a study, and read what its tables say."""

    def run(*changes, drop=(), clusters=None, study="study", models=None):
        rows = [{k: v for k, v in (ROW | one).items() if k not in drop} for one in changes]
        source = tmp_path / "rows.csv"
        with source.open("w", newline="", encoding="utf-8") as out:
            writer = csv.DictWriter(out, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
        run.said = import_rows(source, tmp_path / study, clusters or {}, models)

        def table(name):
            tabulate_only(tmp_path / study, tmp_path / "sql" / name, name)
            return read(tmp_path / study / "tables" / f"{name}.parquet")

        return table

    return run


def test_a_row_becomes_a_measurement_of_series_published(imported):
    (found,) = imported({})("measurements")
    assert (found["series"], found["outcome"]) == ("published", "ok")
    assert found["tokens_per_s"] == 32 * 128 / 0.5
    assert (found["dp"], found["gradient_accumulation_steps"]) == (4, 4)
    assert found["tokens_per_s_low"] is None
    assert found["peak_memory_bytes"] is None


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


@pytest.mark.parametrize("way", ["empty cells", "no such columns"])
def test_what_a_source_does_not_say_stays_null(imported, way):
    unsaid = ("micro_batch_size", "precision", "zero_stage", "attention")
    cells = dict.fromkeys(unsaid, "") if way == "empty cells" else {}
    (found,) = imported(cells, drop=() if cells else unsaid)("layouts")
    assert {name: found[name] for name in unsaid} == dict.fromkeys(unsaid)
    assert found["tokens_per_s"] == 32 * 128 / 0.5


def test_without_the_shape_there_is_a_rate_but_no_mfu(imported):
    (found,) = imported({}, drop=("num_layers",))("measurements")
    assert (found["mfu"], found["tokens_per_s"]) == (None, 32 * 128 / 0.5)


def test_a_source_that_does_not_tell_oom_from_crash_is_not_called_an_oom(imported):
    (found,) = imported({"outcome": "oom_or_crash", "step_time_s": ""})("measurements")
    assert found["outcome"] == "error"
    assert "does not tell them apart" in found["error_message"]


def test_the_same_layout_twice_is_a_repeat_and_frameworks_are_never_averaged(imported):
    table = imported({}, {"step_time_s": "0.6"}, {"framework": "Other"})
    assert sorted(row["repeat"] for row in table("measurements")) == [0, 0, 1]
    assert sorted((row["runs"], row["stack_fingerprint"]) for row in table("layouts")) == [
        (1, "published: Other"),
        (2, "published: Somebody 1.0"),
    ]


def test_sequence_parallel_without_tensor_parallel_is_the_same_training_and_no_rival(imported):
    table = imported(
        {"tp": "1", "sequence_parallel": "true"},
        {"tp": "1", "sequence_parallel": "false", "step_time_s": "0.6"},
    )
    (best,) = table("best")
    assert best["runner_up_layout"] is None
    assert table("pairs") == []


def test_releases_of_one_framework_are_never_averaged(imported):
    releases = ({"release": "26.02", "step_time_s": "0.9"}, {"release": "26.06"})
    found = imported(*releases)("layouts")
    assert sorted((row["runs"], row["stack_fingerprint"]) for row in found) == [
        (1, "published: Somebody 1.0 26.02"),
        (1, "published: Somebody 1.0 26.06"),
    ]


def test_published_rows_beside_measured_ones_keep_their_series(tmp_path, imported):
    one = some_point(1)
    write_points(tmp_path / "study", Plan(points=(one,), refusals=()))
    write_rows(tmp_path / "study" / "rows" / "a.parquet", [timed_row(one, 2.0)])
    table = imported({})
    assert sorted(row["series"] for row in table("measurements")) == ["measured", "published"]
    assert {row["points"] for row in table("progress")} == {1}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"world_size": "eight"}, r"line 2: world_size='eight': must be a number"),
        ({"world_size": "8.5"}, r"line 2: world_size=8.5: must be a whole number"),
        ({"world_size": "9" * 30}, r"line 2: world_size=1e\+30: must be a whole number"),
        (
            {"world_size": "12", "dp": "4"},
            r"line 2: world_size=12: world_size is not tp",
        ),
        ({"dp": "8"}, r"line 2: world_size=8: world_size is not tp x pp x cp x dp"),
        ({"tp": "0"}, r"line 2: tp=0: must be a whole number from 1"),
        ({"num_heads": "0"}, r"line 2: num_heads=0: must be a whole number from 1"),
        ({"zero_stage": "9"}, r"line 2: zero_stage=9: must be a whole number from 0 to 3"),
        ({"global_batch_size": "33"}, r"line 2: global_batch_size=33: global_batch_size is not mi"),
        ({"step_time_s": "1e-9"}, r"line 2: step_time_s=1e-09: would take more FLOP/s than"),
        (
            {"step_time_low_s": "0.6", "step_time_high_s": "0.7"},
            r"line 2: step_time_s=0.5: lies outside its own interval",
        ),
        (
            {
                "hidden_size": "9000000",
                "vocab_size": "9999999",
                "ffn_hidden_size": "9999999",
                "num_layers": "9999999",
            },
            r"line 2: total_params would be \S+e\+\d+",
        ),
        ({"gated_mlp": "perhaps"}, r"line 2: gated_mlp='perhaps': must be true or false"),
        ({"outcome": "omm"}, r"line 2: outcome='omm': did you mean 'oom'"),
        ({"attention": "flash"}, r"line 2: attention='flash': did you mean 'flash\d'"),
        ({"step_time_s": ""}, r"line 2: outcome=ok without a step_time_s above 0"),
        ({"step_time_s": "nan"}, r"line 2: outcome=ok without a step_time_s above 0"),
        ({"step_time_s": "inf"}, r"line 2: step_time_s=inf: must be a number"),
        ({"model": ""}, r"line 2: model is empty, and is needed"),
    ],
)
def test_a_wrong_cell_is_named_with_its_line(imported, changes, sentence):
    with pytest.raises(InputError, match=sentence):
        imported(changes)


def test_a_mixture_of_experts_has_no_flops_of_its_dense_shape(imported):
    (found,) = imported({"num_experts": "8"})("measurements")
    assert (found["mfu"], found["tokens_per_s"]) == (None, 32 * 128 / 0.5)


def test_a_mixture_whose_experts_are_stated_has_the_flops_of_those_a_token_takes(imported):
    experts = {"num_experts": "8", "experts_per_token": "2", "expert_ffn_hidden_size": "16"}
    (mixed,) = imported(experts)("measurements")
    # attention, a router, two experts of two matrices
    weights = 2 * (4 * 64 * 64 + 64 * 8 + 2 * 2 * 64 * 16) + 1000 * 64
    flops = 6 * weights + 12 * 2 * 64 * 128
    assert mixed["mfu"] == pytest.approx(32 * 128 / 0.5 / 8 * flops / 312e12)
    (latent,) = imported(experts | {"attention_kind": "mla"}, study="b")("measurements")
    assert latent["mfu"] is None, "its attention is not stated"


@pytest.mark.parametrize("column", [name for name in NEEDED if name != "outcome"])
def test_a_needed_column_that_is_missing_is_named(imported, column):
    sentence = f"column {column} is missing: the table has .*; needed are model, cluster"
    with pytest.raises(InputError, match=sentence):
        imported({}, drop=(column,))


@pytest.mark.parametrize("name", ["llama_layouts_h100", "llama_layouts_a100", "mpt_zero3"])
def test_published_tables_give_the_best_layouts_that_the_rows_themselves_give(tmp_path, name):
    source = published_csv(name)
    rows = list(csv.DictReader(source.read_text(encoding="utf-8").splitlines()))
    fastest: dict[tuple[str, str, int], float] = {}
    for row in rows:
        if row["outcome"] == "ok":
            key = (row["model"], row["cluster"], int(row["world_size"]))
            tokens = int(row["global_batch_size"]) * int(row["seq_length"])
            fastest[key] = max(fastest.get(key, 0.0), tokens / float(row["step_time_s"]))
    assert import_rows(source, tmp_path, {}).rows == len(rows)
    tabulate_only(tmp_path, tmp_path / "sql", "settings", "best")
    settings = {row["setting_id"]: row for row in read(tmp_path / "tables" / "settings.parquet")}
    found: dict[tuple[str, str, int], dict] = {}
    for row in read(tmp_path / "tables" / "best.parquet"):
        setting = settings[row["setting_id"]]
        key = (setting["model"], setting["cluster"], row["world_size"])
        if key not in found or row["tokens_per_s"] > found[key]["tokens_per_s"]:
            found[key] = row
    assert {key: row["tokens_per_s"] for key, row in found.items()} == pytest.approx(fastest)
    for key, row in found.items():  # equal rates may tie; the layout named is one of them
        same = [
            one
            for one in rows
            if (one["model"], one["cluster"], int(one["world_size"])) == key
            and one["outcome"] == "ok"
            and all(int(one[c]) == row[c] for c in ("tp", "pp", "zero_stage", "micro_batch_size"))
        ]
        rates = [
            int(one["global_batch_size"]) * int(one["seq_length"]) / float(one["step_time_s"])
            for one in same
        ]
        assert fastest[key] == pytest.approx(max(rates))


TINY = ModelShape(
    family="gpt", num_layers=2, hidden_size=64, num_heads=4, num_kv_heads=4, head_dim=16,
    ffn_hidden_size=256, gated_mlp=False, vocab_size=1000, tied_embeddings=True,
)  # fmt: skip


def test_where_no_file_can_be_written_the_sentence_says_so_once(imported, tmp_path):
    (tmp_path / "taken").write_text("a file, and no folder", encoding="utf-8")
    with pytest.raises(InputError) as refused:
        imported({}, study="taken/study")
    assert str(refused.value).count("cannot be written") == 1


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
    assert {row["model"] for row in table("settings")} == {"tiny_gpt"}
    statistics = table("statistics")
    held = {(row["tp"], row["pp"]): row for row in statistics if row["series"] == "published"}
    foretold = {
        (row["tp"], row["pp"], row["fused_norm"], row["compile"]): row["predicted_tokens_per_s"]
        for row in statistics
        if row["series"] is None
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


def test_a_table_without_outcomes_and_clusters_says_both_by_step_times_and_gpus(tmp_path, imported):
    imported(
        {"gpu": "NVIDIA H100 SXM5"}, {"gpu": "NVIDIA H100 SXM5", "step_time_s": "OOM"},
        drop=("outcome", "cluster"),
    )  # fmt: skip
    found = read(tmp_path / "study" / "published.parquet")
    assert {row["cluster"] for row in found} == {"h100-80gb"}
    assert sorted(row["outcome"] for row in found) == ["ok", "oom"]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"precision": "fp6"}, r"line 3: precision='fp6': must be|line 3: precision='fp6': did"),
        ({"outcome": "odd"}, r"line 3: outcome='odd'"),
        ({"model": ""}, r"line 3: model is empty"),
        ({"world_size": "9"}, r"line 3: world_size=9: world_size is not tp x pp x cp x dp"),
        ({"source": "LoRA runs"}, r"line 3: source='LoRA runs': tunes a few weights"),
        ({"step_time_s": "1e-9"}, r"line 3: step_time_s=1e-09: would take more FLOP/s"),
    ],
)
def test_a_row_that_says_what_nobody_knows_is_left_out_alone(tmp_path, imported, changes, sentence):
    imported({}, changes)
    assert len(read(tmp_path / "study" / "published.parquet")) == 1
    left = [one for one in imported.said.sentences if one.startswith("left out: ")]
    assert len(left) == 1
    assert re.search(sentence, left[0])


def test_one_name_for_models_of_several_depths_is_several_models(tmp_path, imported):
    imported({}, {"num_layers": "4"})
    found = read(tmp_path / "study" / "published.parquet")
    assert {row["model"] for row in found} == {"gpt-2-layers", "gpt-4-layers"}


def test_formats_of_others_keep_their_names(imported):
    rows = imported({}, {"precision": "MXFP8"}, {"precision": "nv-fp4"})("layouts")
    assert {row["precision"] for row in rows} == {"bf16", "mxfp8", "nvfp4"}
    assert len({row["layout_name"] for row in rows}) == 3


@pytest.mark.parametrize(
    ("changes", "facts"),
    [
        # cp's ranks among the replicas; local batches of two micro-batches; FSDP in a word
        ({"cp": "2", "dp": "4", "gradient_accumulation_steps": "8"}, {"dp": 2, "cp": 2}),
        ({"LBS": "4", "GA": "2"}, {"dp": 4, "gradient_accumulation_steps": 4}),
        ({"fsdp": "On"}, {"zero_stage": 3}),
        ({"fsdp": "/"}, {"zero_stage": 1}),
        ({"GBS (tokens)": "4096", "global_batch_size": ""}, {"global_batch_size": 32}),
        ({"global_batch_size": str(1 << 30), "seq_length": "8192"}, {"dp": 4}),
        ({"step_time_s": "500 ms"}, {"step_time_s": 0.5}),
        ({"step_time_s": "", "tok/s/GPU": "1,024"}, {"step_time_s": 0.5}),
        ({"step_time_s": "", "samples/sec": "64"}, {"step_time_s": 0.5}),
        ({"world_size": "", "#Nodes": "1"}, {"world_size": 8}),
        ({"step_time_s": "~0.5 ± 0.1"}, {"step_time_s": 0.5}),
        ({"step_time_s": "", "it/s": "2"}, {"step_time_s": 0.5}),
        ({"step_time_s": "", "tokens/s": "8.192k"}, {"step_time_s": 0.5}),
        ({"step_time_s": "", "tokens/s": "8'192"}, {"step_time_s": 0.5}),
        ({"VPP": "0", "EP": "0"}, {"virtual_stages": 1, "ep": 1}),
        ({"zero_stage": "", "sharding_strategy": "FULL_SHARD"}, {"zero_stage": 3}),
    ],
)
def test_what_tables_say_in_their_own_way_comes_in(tmp_path, imported, changes, facts):
    drop = ("outcome",) if changes.get("step_time_s") == "" else ()
    if changes.get("global_batch_size"):
        changes = changes | {"micro_batch_size": "1", "step_time_s": "900"}
    imported(changes, drop=drop)
    (row,) = read(tmp_path / "study" / "published.parquet")
    assert {name: row[name] for name in facts} == pytest.approx(facts)


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
    assert len(one["decision"]) > 10
    for name in one:
        if name in ("measurements", "statistics"):  # one row each, in the order of the file
            one[name], other[name] = (sorted(rows, key=str) for rows in (one[name], other[name]))
        assert one[name] == nearly(other[name]), name
