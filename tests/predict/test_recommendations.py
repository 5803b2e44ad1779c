"""The layouts that are recommended fit, run and are told with what they cost."""

import dataclasses

import numpy as np
import pyarrow as pa
import pytest

from scaling.cluster.hardware import Cluster
from scaling.errors import InputError
from scaling.layout.engines import ENGINES, engine_refusals
from scaling.layout.layout import refusals
from scaling.layout.shapes import model_flops_per_token
from scaling.predict.advise.candidates import Search, usual_batch
from scaling.predict.advise.recommendation import recommend, record_of
from scaling.predict.cost.model import predict
from scaling.predict.cost.risk import stalls_of
from scaling.predict.read.points import points_of, points_of_layouts
from tests.predict.conftest import as_table
from tests.shipped import MODELS

SITE = {
    "site": Cluster(gpu="h100-80gb", gpus_per_node=8, nodes=64, usd_per_gpu_hour=3.6, source="test")
}


def ask(**options):
    asked = {"model": "llama2_7b", "cluster": "site", "clusters": SITE, "gpus": [8, 64]} | options
    asked |= {"shape": MODELS[asked["model"]]}
    top = asked.pop("top", 3)
    return {count: recommend(Search(**asked | {"gpus": count}), top=top) for count in asked["gpus"]}


def test_three_layouts_a_gpu_count_that_fit_and_that_nothing_refuses():
    best = ask()
    assert list(best) == [8, 64]
    for count, several in best.items():
        assert [one.rank for one in several] == [1, 2, 3]
        for one in several:
            assert one.layout.world_size == count
            assert one.layout.global_batch_size == 2**22 // 4096
            assert one.memory_margin > 0
            assert not list(refusals(MODELS["llama2_7b"], one.layout))
            assert not list(engine_refusals(MODELS["llama2_7b"], one.layout))


def test_an_encoder_decoder_is_recommended_what_the_engine_trains():
    advised = ask(model="mt5_base", gpus=[8], seq_length=512)[8]
    assert advised
    for one in advised:
        assert one.layout.attention == "math"
        assert not list(engine_refusals(MODELS["mt5_base"], one.layout))


def test_speed_mfu_and_cost_follow_from_the_predicted_step():
    (one, *_) = ask(gpus=[8], global_batch_size=64)[8]
    assert one.tokens_per_s == pytest.approx(64 * 4096 / one.step_time_s)
    flops = model_flops_per_token(MODELS["llama2_7b"], 4096)
    assert one.mfu == pytest.approx(one.tokens_per_s * flops / (8 * 989.4e12))
    # 8 GPUs at 3.6 USD an hour are 0.008 USD a second
    assert one.usd_per_million_tokens == pytest.approx(0.008 / one.tokens_per_s * 1e6)
    assert one.joules_per_token == pytest.approx(8 * 700 / one.tokens_per_s)
    assert one.low < one.step_time_s < one.high


def test_without_a_price_there_is_no_cost():
    assert ask(cluster="h100-80gb")[8][0].usd_per_million_tokens is None


def test_a_layout_with_little_memory_left_must_be_clearly_faster():
    full = {"model": "llama2_13b", "cluster": "a100-40gb", "gpus": [8]}
    worth_it = ask(**full, global_batch_size=64, seq_length=4096, top=40)[8]
    assert worth_it[0].risky
    safe = next(one for one in worth_it if not one.risky)
    assert worth_it[0].step_time_s < safe.step_time_s / 1.1
    not_worth_it = ask(**full, global_batch_size=64, seq_length=1024, top=40)[8]
    assert not not_worth_it[0].risky
    fastest = min(not_worth_it, key=lambda one: one.step_time_s)
    assert fastest.risky  # and yet not first: it gains less than a tenth
    assert not_worth_it[0].step_time_s > fastest.step_time_s > not_worth_it[0].step_time_s / 1.1


@pytest.mark.parametrize(
    ("gpus", "sentence"),
    [
        (12, "--gpus 12: cluster site has nodes of 8 GPUs: give at most 8 or whole nodes, e.g. 8"),
        (1024, "--gpus 1024: cluster site has 512 GPUs"),
    ],
)
def test_a_size_that_the_cluster_cannot_give_is_one_sentence(gpus, sentence):
    with pytest.raises(InputError, match=sentence):
        ask(gpus=[8, gpus])


def test_less_than_a_node_is_a_size():
    assert ask(gpus=[4], global_batch_size=64)[4][0].layout.world_size == 4


def test_hosts_whose_gpus_links_join_are_counted_one_by_one():
    trays = {"rack": Cluster(
        gpu="gb200-186gb", gpus_per_node=4, nodes=18, node_link_bytes_per_s=2e11, source="test"
    )}  # fmt: skip
    assert ask(cluster="rack", clusters=trays, gpus=[36], global_batch_size=72)[36]
    with pytest.raises(InputError, match="--gpus 144: cluster rack has 72 GPUs"):
        ask(cluster="rack", clusters=trays, gpus=[144])


def test_the_layouts_of_an_engine_are_predicted_as_that_engine_runs_them():
    for engine in ENGINES:
        best = ask(gpus=[8], engine=engine)[8][0]
        alone = predict(
            points_of_layouts(
                [best.layout], [MODELS["llama2_7b"]], SITE, models=["m"], clusters=["site"]
            )
        )
        assert best.layout.engine == engine
        assert best.step_time_s == pytest.approx(alone.step_time_s[0])
        assert best.memory_bytes == pytest.approx(alone.memory_bytes[0])


def test_a_gpu_without_bf16_is_asked_in_fp16():
    best = ask(cluster="v100-32gb", gpus=[8], global_batch_size=64)[8]
    assert {one.layout.precision for one in best} == {"fp16"}
    with pytest.raises(InputError, match="precision=bf16 has no published peak on gpu=v100-32gb"):
        ask(cluster="v100-32gb", gpus=[8], precision="bf16")


def test_the_precision_that_is_asked_for_is_the_layouts():
    slow, fast = (ask(gpus=[8], precision=one)[8][0] for one in ("fp32", "fp8"))
    assert (slow.layout.precision, fast.layout.precision) == ("fp32", "fp8")
    assert fast.step_time_s < slow.step_time_s


def test_a_model_that_fits_nowhere_is_said_to():
    with pytest.raises(InputError, match=r"--gpus 8: none of \d+ layouts of gpt_175b fits"):
        ask(model="gpt_175b", gpus=[8], seq_length=2048)


def test_a_batch_no_gpu_count_divides_is_said_to_be_one():
    odd = {"site": Cluster(gpu="h100-80gb", gpus_per_node=37, nodes=1, source="test")}
    with pytest.raises(InputError, match="no layout of llama2_7b runs on 37 GPUs"):
        ask(gpus=[37], global_batch_size=3, clusters=odd)


def test_a_setting_that_the_model_cannot_have_is_refused_with_its_reason():
    with pytest.raises(InputError, match="--setting: routing=learned is among experts, and this"):
        ask(gpus=[8], setting={"routing": "learned"})


def test_an_unknown_cluster_is_named_with_the_nearest():
    with pytest.raises(InputError, match="unknown cluster 'sit': did you mean 'site'"):
        ask(cluster="sit")


def test_a_record_says_layout_and_figures_side_by_side():
    record = record_of(ask(gpus=[8])[8][0])
    assert {"gpus", "tp", "pp", "zero_stage", "tokens_per_s", "mfu", "memory_margin"} <= set(record)
    assert "layout" not in record


def test_a_record_is_predicted_as_it_was_recommended():
    best = ask(gpus=[8])[8][0]
    record = record_of(best)
    row = {**dataclasses.asdict(MODELS["llama2_7b"]), **record}
    row |= {"cluster": "site", "model": "llama2_7b", "seq_length": 4096}
    columns = as_table(pa.Table.from_pylist([row]), "t")
    again = predict(points_of(columns, clusters=SITE))
    assert again.step_time_s.tolist() == pytest.approx([best.step_time_s], rel=1e-12)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ("gpt2", "seq_length=4096 is more than the max_positions=1024"),
        ("gpt_oss_20b", "window=128"),
    ],
)
def test_a_model_that_no_layout_trains_is_refused_with_the_reason(model, reason):
    with pytest.raises(InputError, match=f"--model {model}: {reason}"):
        ask(model=model, gpus=[8])


def test_one_gpu_without_bf16_uses_a_stage_that_its_engine_allows():
    (best, *_) = ask(model="gpt2", cluster="v100-32gb", gpus=[1], seq_length=1024)[1]
    assert (best.layout.precision, best.layout.zero_stage) == ("fp16", 1)


def test_pipelines_over_a_lossy_transport_rank_behind_their_time(points):
    rows = [{"cluster": c, "dp": 8, "pp": 4} for c in ("h100-80gb-efa", "h100-80gb-dgx")]
    ratios = []
    for row in rows:
        (group,) = points(row).groups
        stalls = stalls_of(group, group.features, group.start)
        lossy = group.cluster.lossy_transport
        ranked = stalls.ranked_s(np.array([1.0]), np.array([0.5]), lossy=lossy)
        ratios.append(float(ranked[0]))
    assert ratios[0] > ratios[1] == pytest.approx(1.0)


def test_the_default_batch_lies_between_those_of_llama_2_and_3():
    assert usual_batch(4096, 8) == 1024
    assert usual_batch(4096, 2048) == 2048
    assert usual_batch(4096, 16384) == 4096
    assert usual_batch(8192, 16384) == 2048


def test_the_first_is_as_fast_as_itself_and_others_are_likely_slower():
    several = ask(gpus=[64], top=10)[64]
    assert several[0].beats_first == pytest.approx(0.5)
    assert all(0 < one.beats_first < 0.6 for one in several[1:])
    assert all(0.5 < one.fits_chance <= 1 for one in several)
    assert several[0].rest_sigma > 0


def test_requested_settings_hold_in_every_layout():
    options = {"gpus": [32], "top": 50, "model": "qwen3_30b_a3b"}
    even, learned = (
        ask(**options, setting=setting)[32] for setting in ({}, {"routing": "learned"})
    )
    assert {one.layout.routing for one in even} == {"balanced"}
    assert {one.layout.routing for one in learned} == {"learned"}
    assert learned[0].step_time_s > even[0].step_time_s


def test_a_setting_nobody_knows_is_one_sentence():
    with pytest.raises(InputError, match="--setting routeing: did you mean 'routing'"):
        ask(setting={"routeing": "learned"})
