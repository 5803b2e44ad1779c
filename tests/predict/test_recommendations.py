import numpy as np
import pytest

from scaling.cluster.hardware import Cluster
from scaling.errors import InputError
from scaling.foreign.columns import Columns
from scaling.layout.engines import engine_refusals
from scaling.layout.layout import refusals
from scaling.layout.shapes import ModelShape, model_flops_per_token
from scaling.predict.advise.recommend import recommend, record_of
from scaling.predict.advise.spend import memory_refusals, spend_of
from scaling.predict.cost.model import predict
from scaling.predict.cost.risk import ranked_by
from scaling.predict.read.points import points_of
from tests.predict.conftest import table_of

LLAMA_7B = ModelShape(
    num_layers=32, hidden_size=4096, num_heads=32, num_kv_heads=32, head_dim=128,
    ffn_hidden_size=11008, vocab_size=32000,
)  # fmt: skip
LLAMA_13B = ModelShape(
    num_layers=40, hidden_size=5120, num_heads=40, num_kv_heads=40, head_dim=128,
    ffn_hidden_size=13824, vocab_size=32000,
)  # fmt: skip
SITE = {
    "site": Cluster(gpu="h100-80gb", gpus_per_node=8, nodes=64, usd_per_gpu_hour=3.6, source="test")
}


def ask(**options):
    asked = {"model": "llama2_7b", "shape": LLAMA_7B, "cluster": "site", "clusters": SITE}
    return recommend(**{**asked, "gpus": [8, 64], **options})


def test_three_layouts_a_gpu_count_that_fit_and_that_nothing_refuses():
    best = ask()
    assert list(best) == [8, 64]
    for count, several in best.items():
        assert [one.rank for one in several] == [1, 2, 3]
        for one in several:
            assert one.layout.world_size == count
            assert one.layout.global_batch_size == 2**22 // 4096
            assert one.memory_margin > 0
            assert not list(refusals(LLAMA_7B, one.layout))
            assert not list(engine_refusals(LLAMA_7B, one.layout))


def test_an_encoder_decoder_is_recommended_what_the_engine_trains():
    shape = ModelShape(
        family="t5", num_layers=4, num_encoder_layers=4, hidden_size=512, num_heads=8,
        num_kv_heads=8, head_dim=64, ffn_hidden_size=1024, vocab_size=32128,
    )  # fmt: skip
    advised = ask(model="t5", shape=shape, gpus=[8], seq_length=512)[8]
    assert advised
    for one in advised:
        assert one.layout.attention == "math"
        assert not list(engine_refusals(shape, one.layout))


def test_speed_mfu_and_cost_follow_from_the_predicted_step():
    (one, *_) = ask(gpus=[8], global_batch_size=64)[8]
    assert one.tokens_per_s == pytest.approx(64 * 4096 / one.step_time_s)
    flops = model_flops_per_token(LLAMA_7B, 4096)
    assert one.mfu == pytest.approx(one.tokens_per_s * flops / (8 * 989.4e12))
    # 8 GPUs at 3.6 USD an hour are 0.008 USD a second
    assert one.usd_per_million_tokens == pytest.approx(0.008 / one.tokens_per_s * 1e6)
    assert one.joules_per_token == pytest.approx(8 * 700 / one.tokens_per_s)
    assert one.low < one.step_time_s < one.high


def test_without_a_price_there_is_no_cost():
    assert ask(cluster="h100-80gb")[8][0].usd_per_million_tokens is None


def test_a_layout_with_little_memory_left_must_be_clearly_faster():
    full = {"model": "llama2_13b", "shape": LLAMA_13B, "cluster": "a100-40gb", "gpus": [8]}
    worth_it = ask(**full, global_batch_size=256, top=40)[8]
    assert [one.risky for one in worth_it[:2]] == [True, False]
    assert worth_it[0].step_time_s < worth_it[1].step_time_s / 1.1
    not_worth_it = ask(**full, global_batch_size=64, top=40)[8]
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
    shape = ModelShape(
        num_layers=96, hidden_size=12288, num_heads=96, num_kv_heads=96, head_dim=128,
        ffn_hidden_size=49152, vocab_size=51200,
    )  # fmt: skip
    with pytest.raises(InputError, match=r"--gpus 8: none of \d+ layouts of gpt3 fits"):
        ask(model="gpt3", shape=shape, gpus=[8])


def test_a_batch_no_gpu_count_divides_is_said_to_be_one():
    odd = {"site": Cluster(gpu="h100-80gb", gpus_per_node=37, nodes=1, source="test")}
    with pytest.raises(InputError, match="no layout of llama2_7b runs on 37 GPUs"):
        ask(gpus=[37], global_batch_size=3, clusters=odd)


def test_an_unknown_cluster_is_named_with_the_nearest():
    with pytest.raises(InputError, match="unknown cluster 'sit': did you mean 'site'"):
        ask(cluster="sit")


def test_a_record_says_layout_and_figures_side_by_side():
    record = record_of(ask(gpus=[8])[8][0])
    assert {"gpus", "tp", "pp", "zero_stage", "tokens_per_s", "mfu", "memory_margin"} <= set(record)
    assert "layout" not in record


def test_pipelines_over_a_lossy_transport_rank_behind_their_time(points):
    rows = [{"cluster": c, "dp": 8, "pp": 4} for c in ("h100-80gb-efa", "h100-80gb-dgx")]
    ratios = []
    for row in rows:
        (group,) = points(row).groups
        ranked = ranked_by(group, group.features, np.array([1.0]), np.array([0.5]))
        ratios.append(float(ranked[0]))
    assert ratios[0] > ratios[1] == pytest.approx(1.0)


def test_what_a_study_spends_is_gpus_times_steps_of_what_fits():
    rows = [{"dp": 8, "zero_stage": 3}, {"dp": 1}, {"pp": 64}]
    points = points_of(Columns(table_of(*rows), "t"))
    prediction = predict(points)
    assert prediction.fits.tolist() == [True, False, False]
    spend = spend_of(points, prediction, steps=10, startup_s=60)
    seconds = 8 * (10 * prediction.step_time_s[0] + 60)
    assert spend.points == 1
    assert spend.unpredicted == 1
    assert spend.gpu_hours == pytest.approx(seconds / 3600)
    assert spend.energy_j == pytest.approx(seconds * 400)
    assert spend.usd is None


def test_money_needs_a_price():
    points = points_of(Columns(table_of({"dp": 8, "cluster": "site", "tp": 2}), "t"), clusters=SITE)
    spend = spend_of(points, predict(points), steps=1)
    assert spend.usd == pytest.approx(spend.gpu_hours * 3.6)


def test_hopeless_points_are_refused_with_the_memory_term_by_term(points):
    found = points({"dp": 8, "zero_stage": 3}, {"dp": 1})
    prediction = predict(found)
    refused = memory_refusals(found, prediction)
    assert list(refused) == [1]
    assert prediction.passed_over.tolist() == [False, True]
    assert "GiB is" in refused[1]
    assert "optimizer 75.3" in refused[1]  # 12 bytes x 6.74 billion parameters
