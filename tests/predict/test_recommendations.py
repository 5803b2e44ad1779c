"""Layouts that are searched, rehearsed near the capacity, and recommended with what they cost."""

import dataclasses
import json
import math
import random
import statistics

import pyarrow as pa
import pytest

from scaling.cluster.hardware import GIB, Cluster
from scaling.errors import InputError
from scaling.layout.engines import engine_refusals
from scaling.layout.layout import Layout, refusals
from scaling.layout.shapes import model_flops_per_token
from scaling.predict.advise.candidates import Search, candidates
from scaling.predict.advise.recommendation import recommend
from scaling.predict.advise.rehearse import (
    best_of_sizes,
    memory_refusals,
    nearest_first,
    predict_rehearsed,
)
from scaling.predict.cost.model import MEMORY_SIGMA, MEMORY_SIGMA_REHEARSED, predict
from scaling.predict.cost.prediction_tables import prediction_table
from scaling.predict.read.points import points_of
from tests.predict.conftest import as_table
from tests.shipped import CLUSTERS, MODELS

SITE = {
    "site": Cluster(gpu="h100-80gb", gpus_per_node=8, nodes=64, usd_per_gpu_hour=3.6, source="test")
}


def ask(**options):
    asked = {"model": "llama2_7b", "cluster": "site", "clusters": SITE, "gpus": [8, 64]} | options
    asked |= {"shape": MODELS[asked["model"]]}
    top = asked.pop("top", 3)
    return {
        count: [
            {**one.facts, "layout": one.layout}
            for one in recommend(Search(**asked | {"gpus": count}), top=top)
        ]
        for count in asked["gpus"]
    }


TRAYS = {"rack": Cluster(
    gpu="gb200-186gb", gpus_per_node=4, nodes=18, node_link_bytes_per_s=2e11, source="test"
)}  # fmt: skip
ODD = {"site": Cluster(gpu="h100-80gb", gpus_per_node=37, nodes=1, source="test")}


def test_three_layouts_a_gpu_count_that_fit_and_that_nothing_refuses():
    best = ask()
    assert list(best) == [8, 64]
    for count, several in best.items():
        assert [one["rank"] for one in several] == [1, 2, 3]
        for one in several:
            assert one["layout"].world_size == count
            assert one["layout"].global_batch_size == 2**22 // 4096
            assert one["memory_margin"] > 0
            assert not list(refusals(MODELS["llama2_7b"], one["layout"]))
            assert not list(engine_refusals(MODELS["llama2_7b"], one["layout"]))


def test_speed_mfu_and_cost_follow_from_the_predicted_step():
    (one, *_) = ask(gpus=[8], global_batch_size=64)[8]
    assert one["tokens_per_s"] == pytest.approx(64 * 4096 / one["step_time_s"])
    flops = model_flops_per_token(MODELS["llama2_7b"], 4096)
    assert one["mfu"] == pytest.approx(one["tokens_per_s"] * flops / (8 * 989.4e12))
    # 8 GPUs at 3.6 USD an hour are 0.008 USD a second
    assert one["usd_per_million_tokens"] == pytest.approx(0.008 / one["tokens_per_s"] * 1e6)
    assert one["joules_per_token"] == pytest.approx(8 * 700 / one["tokens_per_s"])
    assert one["low"] < one["step_time_s"] < one["high"]
    assert ask(cluster="h100-80gb")[8][0]["usd_per_million_tokens"] is None


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"gpus": [8, 12]}, "--gpus 12: cluster site has nodes of 8 GPUs: give at most 8 or whole "
            "nodes, e.g. 8"),
        ({"gpus": [8, 1024]}, "--gpus 1024: cluster site has 512 GPUs"),
        ({"gpus": [144], "cluster": "rack", "clusters": TRAYS}, "cluster rack has 72 GPUs"),
        ({"cluster": "sit"}, "unknown cluster 'sit': did you mean 'site'"),
        ({"cluster": "v100-32gb", "precision": "bf16"},
            "precision=bf16 has no published peak on gpu=v100-32gb"),
        ({"model": "gpt_175b", "gpus": [8], "seq_length": 2048},
            r"--gpus 8: none of \d+ layouts of gpt_175b fits"),
        ({"gpus": [37], "global_batch_size": 3, "clusters": ODD},
            "no layout of llama2_7b runs on 37 GPUs"),
        ({"setting": {"routing": "learned"}},
            "--model llama2_7b: routing=learned is among experts, and this"),
        ({"model": "gpt2"}, "--model gpt2: seq_length=4096 is more than the max_positions=1024"),
        ({"model": "gpt_oss_20b"}, "--model gpt_oss_20b: window=128"),
    ],
)  # fmt: skip
def test_what_cannot_be_recommended_is_refused_with_its_reason(asked, sentence):
    with pytest.raises(InputError, match=sentence):
        ask(**asked)


@pytest.mark.parametrize(
    ("asked", "chosen"),
    [
        ({"gpus": [4], "global_batch_size": 64}, {"world_size": 4}),
        ({"gpus": [36], "global_batch_size": 72, "cluster": "rack", "clusters": TRAYS},
            {"world_size": 36}),
        ({"cluster": "v100-32gb", "gpus": [8], "global_batch_size": 64}, {"precision": "fp16"}),
        ({"model": "gpt2", "cluster": "v100-32gb", "gpus": [1], "seq_length": 1024},
            {"precision": "fp16", "zero_stage": 1}),
        ({"model": "mt5_base", "gpus": [8], "seq_length": 512}, {"attention": "math"}),
        ({"gpus": [8], "precision": "fp32"}, {"precision": "fp32"}),
        ({"gpus": [8], "precision": "fp8"}, {"precision": "fp8"}),
    ],
)  # fmt: skip
def test_a_first_layout_is_what_hardware_engine_and_options_allow(asked, chosen):
    (several,) = ask(**asked).values()
    assert {name: getattr(several[0]["layout"], name) for name in chosen} == chosen
    shape = MODELS[asked.get("model", "llama2_7b")]
    assert not [why for one in several for why in engine_refusals(shape, one["layout"])]


def test_a_layout_with_little_memory_left_must_be_clearly_faster():
    full = {"model": "llama2_13b", "cluster": "a100-40gb", "gpus": [8]}
    worth_it = ask(**full, global_batch_size=64, seq_length=4096, top=40)[8]
    assert worth_it[0]["risky"]
    safe = next(one for one in worth_it if not one["risky"])
    assert worth_it[0]["step_time_s"] < safe["step_time_s"] / 1.1
    not_worth_it = ask(**full, global_batch_size=64, seq_length=1024, top=40)[8]
    assert not not_worth_it[0]["risky"]
    fastest = min(not_worth_it, key=lambda one: one["step_time_s"])
    assert fastest["risky"]  # and yet not first: it gains less than a tenth
    assert (
        not_worth_it[0]["step_time_s"]
        > fastest["step_time_s"]
        > not_worth_it[0]["step_time_s"] / 1.1
    )


def test_a_record_is_predicted_as_it_was_recommended():
    record = ask(gpus=[8])[8][0]
    assert {"gpus", "tp", "pp", "tokens_per_s", "mfu", "memory_margin"} <= set(record)
    del record["layout"]
    row = {**dataclasses.asdict(MODELS["llama2_7b"]), **record}
    row |= {"cluster": "site", "model": "llama2_7b", "seq_length": 4096}
    columns = as_table(pa.Table.from_pylist([row]), "t")
    again = predict(points_of(columns, clusters=SITE))
    assert again.step_time_s.tolist() == pytest.approx([record["step_time_s"]], rel=1e-12)


@pytest.mark.slow
def test_any_options_are_answered_or_refused_in_one_short_sentence():
    draw, said = random.Random(20261122), []
    for _ in range(100):
        asked = {
            "model": draw.choice(["llama3_1b", "tiny", "tiny_t5", "gpt2", "gpt_175b"]),
            "cluster": draw.choice(
                ["v100-32gb", "h100-80gb-efa", "mi300x-192gb", "local", "cpu", "x" * 5000]
            ),
            "clusters": CLUSTERS,
            "gpus": [draw.choice([1, 3, 7, 8, 12, 16, 37, 10**6, 10**12])],
            "seq_length": draw.choice([1, 7, 512, 10**7]),
            "global_batch_size": draw.choice([None, 1, 3, 64, 10**7]),
            "precision": draw.choice(["fp32", "bf16", "fp16", "fp8", None]),
        }
        try:
            ((_, best),) = ask(**asked).items()
        except InputError as error:
            said.append(str(error))
        else:
            facts = [{**one, "layout": dataclasses.asdict(one["layout"])} for one in best]
            json.dumps(facts, allow_nan=False)
    assert 5 < len(said) < 95
    assert not [one for one in said if not one.strip() or "\n" in one or len(one) >= 2500]


OWN = ("layout", "rest")  # errors that a layout shares with no other of its size


def test_the_first_is_as_fast_as_itself_and_others_are_likely_slower():
    several = ask(gpus=[64], top=10)[64]
    assert several[0]["beats_first"] == pytest.approx(0.5)
    for one in several[1:]:
        apart = math.log(several[0]["step_time_s"] / one["step_time_s"])
        own = math.hypot(*(of[f"{part}_sigma"] for of in (one, several[0]) for part in OWN))
        assert one["beats_first"] == pytest.approx(statistics.NormalDist().cdf(apart / own))
    assert len({one["layout_sigma"] for one in several}) > 1
    assert all(0.5 < one["fits_chance"] <= 1 for one in several)
    assert several[0]["rest_sigma"] > 0


def test_requested_settings_hold_in_every_layout():
    options = {"gpus": [32], "top": 50, "model": "qwen3_30b_a3b"}
    even, learned = (
        ask(**options, setting=setting)[32] for setting in ({}, {"routing": "learned"})
    )
    assert {one["layout"].routing for one in even} == {"balanced"}
    assert {one["layout"].routing for one in learned} == {"learned"}
    assert learned[0]["step_time_s"] > even[0]["step_time_s"]


LLAMA_70B_IN_TORCH = Search(
    model="llama3_70b", shape=MODELS["llama3_70b"], cluster="h100-80gb", clusters={}, gpus=64,
    global_batch_size=256, seq_length=8192, engine="torch",
)  # fmt: skip


def test_every_axis_that_the_torch_engine_has_is_searched():
    found = list(candidates(LLAMA_70B_IN_TORCH))
    for name, values in {
        "activation_checkpointing": {"none", "selective", "full"},
        "cp": {1, 2, 4},
        "zero_stage": {0, 1, 2, 3},
        "zero_shard_size": {None, 8, 4},
        "virtual_stages": {1, 2, 5},
        "pipeline_schedule": {"1f1b", "interleaved"},
    }.items():
        assert values <= {getattr(layout, name) for layout in found}, name
    assert all(next(refusals(MODELS["llama3_70b"], layout), None) is None for layout in found)


def test_a_shard_inside_a_node_is_as_large_in_a_pipeline():
    found = {
        (layout.tp * layout.cp, layout.zero_shard_size)
        for layout in candidates(LLAMA_70B_IN_TORCH)
        if layout.pp > 1 and layout.zero_shard_size is not None
    }
    assert found == {(1, 8), (2, 4), (4, 2)}


def test_experts_are_dealt_over_ranks_that_divide_them():
    search = Search(
        model="qwen3", shape=MODELS["qwen3_30b_a3b"], cluster="h100-80gb", clusters={}, gpus=16,
        global_batch_size=512, engine="torch",
    )  # fmt: skip
    assert {layout.ep for layout in candidates(search)} == {1, 2, 4, 8, 16}


ROWS = [{"zero_stage": 1, "dp": 8, "micro_batch_size": size} for size in (1, 7, 8, 16)]


@pytest.fixture
def asked(points):
    shape = {"num_layers": 16, "hidden_size": 2048, "num_heads": 16, "vocab_size": 32000}
    work = {"framework": "scaling", "seq_length": 4096, "cluster": "h100-80gb-dgx"}
    return points(*({**shape, **work, **row} for row in ROWS))


def test_only_shown_rows_near_the_capacity_are_rehearsed(asked):
    ratio = predict(asked).need_bytes / predict(asked).capacity_bytes
    near = [row for row in range(4) if 0.8 <= ratio[row] <= 1.15]
    assert near
    assert len(near) < 4
    heard = []
    predict_rehearsed(
        asked, None, lambda _: range(4), lambda rows: heard.extend(rows) or [None] * len(rows)
    )
    assert heard == near
    assert sorted(nearest_first(predict(asked))) == near


def test_a_rehearsal_decides_with_a_small_error(asked):
    row = nearest_first(predict(asked))[0]
    for size, fits in ((60.0 * GIB, True), (90.0 * GIB, False)):
        found = predict_rehearsed(
            asked, None, lambda _: [row], lambda rows, of=size: [of] * len(rows)
        )
        assert found.fits[row] == fits
        assert predict(asked).fits_chance[row] > 0.02
        assert (found.fits_chance[row] < 0.02) != fits
        assert found.memory_sigma[row] == MEMORY_SIGMA_REHEARSED < MEMORY_SIGMA
        terms = sum(values[row] for values in found.memory_terms.values())
        assert terms == pytest.approx(found.memory_bytes[row])
        kinds = prediction_table(asked, found)["memory_from"].to_pylist()
        assert [at for at in range(4) if kinds[at] == "rehearsed"] == [row]


def test_the_best_of_a_size_is_the_fastest_that_fits(asked):
    prediction = predict(asked)
    (best,) = best_of_sizes(asked, prediction)
    seconds = prediction.risk_adjusted_s[prediction.fits]
    assert prediction.risk_adjusted_s[best] == seconds.min()


def test_layouts_that_a_rehearsal_excludes_make_room_for_others():
    model = {"model": "llama3_8b", "shape": MODELS["llama3_8b"]}
    search = Search(**model, cluster="h100-80gb-dgx", clusters=CLUSTERS, gpus=8)
    predicted = recommend(search)
    asked: list[Layout] = []

    def too_much(points):
        asked.extend(point.layout for point in points)
        return [100.0 * GIB] * len(points)

    found = recommend(search, rehearse=too_much)
    assert len(found) == 3
    assert {one.facts["memory_from"] for one in found} == {"predicted"}
    assert not {one.layout for one in found} & {*asked}
    near = [one.layout for one in predicted if 0 < one.facts["memory_margin"] < 0.2]
    assert near
    assert {*near} <= {*asked}


def test_hopeless_points_are_refused_with_the_memory_term_by_term(points):
    found = points({"dp": 8, "zero_stage": 3}, {"dp": 1})
    prediction = predict(found)
    refused = memory_refusals(prediction)
    assert list(refused) == [1]
    assert prediction.likely_oom.tolist() == [False, True]
    assert "GiB is" in refused[1]
    assert "optimizer 75.3" in refused[1]  # 12 bytes x 6.74 billion parameters
