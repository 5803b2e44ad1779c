import numpy as np
import pytest

from scaling.cluster.hardware import Cluster, gpu_named
from scaling.errors import InputError
from scaling.foreign.columns import Columns
from scaling.layout.engines import ENGINES, engine_refusals
from scaling.layout.layout import refusals
from scaling.layout.shapes import ModelShape, model_flops_per_token
from scaling.predict.advise.candidates import Search, candidates, pipeline_depths
from scaling.predict.advise.recommend import recommend, record_of, usual_batch
from scaling.predict.advise.remarks import remarks
from scaling.predict.advise.spend import memory_refusals, spend_of
from scaling.predict.cost.model import predict
from scaling.predict.cost.risk import risk_adjusted_step_s
from scaling.predict.read.inputs import inputs_of_layouts
from scaling.predict.read.points import points_from, points_of
from scaling.predict.read.stacks import stack_of
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
    worth_it = ask(**full, global_batch_size=64, seq_length=8192, top=40)[8]
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
        inputs = inputs_of_layouts([best.layout], [LLAMA_7B], models=["m"], clusters=["site"])
        alone = predict(points_from(inputs, SITE))
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


def test_pipelines_over_a_lossy_transport_rank_behind_their_time(points):
    rows = [{"cluster": c, "dp": 8, "pp": 4} for c in ("h100-80gb-efa", "h100-80gb-dgx")]
    ratios = []
    for row in rows:
        (group,) = points(row).groups
        ranked = risk_adjusted_step_s(group, group.features, np.array([1.0]), np.array([0.5]))
        ratios.append(float(ranked[0]))
    assert ratios[0] > ratios[1] == pytest.approx(1.0)


def test_what_a_study_spends_is_gpus_times_steps_of_what_fits():
    rows = [{"dp": 8, "zero_stage": 3}, {"dp": 1}, {"pp": 64}]
    points = points_of(Columns(table_of(*rows), "t"))
    prediction = predict(points)
    assert prediction.fits.tolist() == [True, False, False]
    spend = spend_of(points, prediction, run_s=60 + 10 * prediction.step_time_s)
    seconds = 8 * (10 * prediction.step_time_s[0] + 60)
    assert spend.points == 1
    assert spend.unpredicted == 1
    assert spend.gpu_hours == pytest.approx(seconds / 3600)
    assert spend.energy_j == pytest.approx(seconds * 400)
    assert spend.usd is None


def test_money_needs_a_price():
    points = points_of(Columns(table_of({"dp": 8, "cluster": "site", "tp": 2}), "t"), clusters=SITE)
    prediction = predict(points)
    spend = spend_of(points, prediction, run_s=prediction.step_time_s)
    assert spend.usd == pytest.approx(spend.gpu_hours * 3.6)


def test_hopeless_points_are_refused_with_the_memory_term_by_term(points):
    found = points({"dp": 8, "zero_stage": 3}, {"dp": 1})
    prediction = predict(found)
    refused = memory_refusals(found, prediction)
    assert list(refused) == [1]
    assert prediction.likely_oom.tolist() == [False, True]
    assert "GiB is" in refused[1]
    assert "optimizer 75.3" in refused[1]  # 12 bytes x 6.74 billion parameters


LLAMA_405B = ModelShape(
    num_layers=126, hidden_size=16384, num_heads=128, num_kv_heads=8, head_dim=128,
    ffn_hidden_size=53248, vocab_size=128256,
)  # fmt: skip
LLAMA_70B = ModelShape(
    num_layers=80, hidden_size=8192, num_heads=64, num_kv_heads=8, head_dim=128,
    ffn_hidden_size=28672, vocab_size=128256,
)  # fmt: skip
GPT_175B = ModelShape(
    family="gpt", num_layers=96, hidden_size=12288, num_heads=96, num_kv_heads=96, head_dim=128,
    ffn_hidden_size=49152, vocab_size=51200, gated_mlp=False, tied_embeddings=True,
    max_positions=2048,
)  # fmt: skip
LARGE = {
    name: Cluster(gpu=gpu, gpus_per_node=8, nodes=2048, node_link_bytes_per_s=link, source="test")
    for name, gpu, link in (("a100", "a100-80gb", 200e9), ("h100", "h100-80gb", 400e9))
} | {"gb200": Cluster(gpu="gb200-186gb", gpus_per_node=4, nodes=2048, source="test")}
DEEPSEEK_V3 = ModelShape(
    num_layers=61, hidden_size=7168, num_heads=128, num_kv_heads=128, head_dim=128,
    ffn_hidden_size=18432, vocab_size=129280, num_experts=256, experts_per_token=8,
    expert_ffn_hidden_size=2048, shared_experts=1, dense_layers=3, query_rank=1536,
    key_value_rank=512, rotary_head_dim=64, value_head_dim=128,
)  # fmt: skip


def searched(shape, cluster, gpus, batch, seq_length, precision, framework):
    """Every layout with its prediction, and the order in which they are recommended."""
    search = Search(
        shape=shape, gpus=gpus, global_batch_size=batch, seq_length=seq_length,
        precision=precision, engine=None, gpus_per_node=LARGE[cluster].gpus_per_node,
        ring=stack_of(framework, gpu_named(LARGE[cluster].gpu)).ring,
    )  # fmt: skip
    layouts = list(candidates(search))
    n = len(layouts)
    inputs = inputs_of_layouts(
        layouts, [shape] * n, models=["m"] * n, clusters=[cluster] * n, framework=framework
    )
    prediction = predict(points_from(inputs, LARGE))
    order = np.argsort(np.where(prediction.fits, prediction.risk_adjusted_s, np.inf), kind="stable")
    return layouts, prediction, order[: int(prediction.fits.sum())]


# What people who train such models chose: arXiv 2205.05198 (A100), MLPerf Training v4.1 and v4.0,
# NVIDIA's DGX Cloud recipes, arXiv 2407.21783 (Llama 3 405B), Megatron-Bridge (DeepSeek-V3).
@pytest.mark.parametrize(
    ("asked", "chosen"),
    [
        (
            (GPT_175B, "a100", 1024, 1536, 2048, "bf16", "Megatron-LM"),
            {"tp": 8, "pp": 8, "micro_batch_size": 1},
        ),
        (
            (GPT_175B, "h100", 512, 2048, 2048, "fp8", "NeMo (MLPerf v4.1)"),
            {"tp": 4, "pp": 8, "virtual_stages": 6, "micro_batch_size": 1},
        ),
        (
            (GPT_175B, "h100", 10752, 2688, 2048, "fp8", "NeMo (MLPerf v4.1)"),
            {"tp": 4, "pp": 8, "virtual_stages": 6},
        ),
        (
            (LLAMA_70B, "h100", 64, 128, 8192, "bf16", "NeMo v25.02"),
            {"tp": 4, "pp": 4, "cp": 2, "virtual_stages": 5},
        ),
        (
            (LLAMA_405B, "h100", 16384, 2048, 8192, "bf16", "Megatron-Core"),
            {"tp": 8, "pp": 16},
        ),
        (
            (DEEPSEEK_V3, "gb200", 256, 4096, 4096, "mxfp8", "Megatron-Bridge"),
            {"tp": 1, "pp": 4, "ep": 64, "micro_batch_size": 1},
        ),
    ],
    ids=[
        "GPT-3 on 1,024 A100",
        "GPT-3 on 512 H100",
        "GPT-3 on 10,752 H100",
        "Llama 3 70B on 64 H100",
        "Llama 3 405B on 16,384 H100",
        "DeepSeek-V3 on 256 GB200",
    ],
)
def test_what_experts_chose_is_among_the_best(asked, chosen):
    layouts, prediction, order = searched(*asked)
    places = [
        place
        for place, row in enumerate(order.tolist())
        if all(getattr(layouts[row], name) == value for name, value in chosen.items())
    ]
    assert places[0] < 0.05 * len(order)
    times = prediction.step_time_s[order]
    assert times[places[0]] < 1.1 * times[0]


def test_every_axis_that_the_torch_engine_has_is_searched():
    search = Search(
        shape=LLAMA_70B, gpus=64, global_batch_size=256, seq_length=8192, precision="bf16",
        engine="torch", gpus_per_node=8,
    )  # fmt: skip
    found = list(candidates(search))
    for name, values in {
        "activation_checkpointing": {"none", "selective", "full"},
        "cp": {1, 2, 4},
        "zero_stage": {0, 1, 2, 3},
        "zero_shard_size": {None, 8, 4},
        "virtual_stages": {1, 2, 5},
        "pipeline_schedule": {"1f1b", "interleaved"},
    }.items():
        assert values <= {getattr(layout, name) for layout in found}, name
    assert all(next(refusals(LLAMA_70B, layout), None) is None for layout in found)


def test_a_shard_inside_a_node_is_as_large_in_a_pipeline_whose_stages_lie_on_other_nodes():
    search = Search(
        shape=LLAMA_70B, gpus=64, global_batch_size=256, seq_length=8192, precision="bf16",
        engine="torch", gpus_per_node=8,
    )  # fmt: skip
    found = {
        (layout.tp * layout.cp, layout.zero_shard_size)
        for layout in candidates(search)
        if layout.pp > 1 and layout.zero_shard_size is not None
    }
    assert found == {(1, 8), (2, 4), (4, 2)}


def test_experts_are_dealt_over_ranks_that_divide_them():
    shape = ModelShape(
        num_layers=48, hidden_size=2048, num_heads=32, num_kv_heads=4, head_dim=128,
        ffn_hidden_size=6144, vocab_size=151936, num_experts=128, experts_per_token=8,
        expert_ffn_hidden_size=768,
    )  # fmt: skip
    search = Search(
        shape=shape, gpus=16, global_batch_size=512, seq_length=4096, precision="bf16",
        engine=None, gpus_per_node=8,
    )  # fmt: skip
    assert {layout.ep for layout in candidates(search)} == {1, 2, 4, 8, 16}


def test_the_batch_nobody_asked_for_lies_between_that_of_llama_2_and_that_of_llama_3():
    assert usual_batch(4096, 8) == 1024
    assert usual_batch(4096, 2048) == 2048
    assert usual_batch(4096, 16384) == 4096
    assert usual_batch(8192, 16384) == 2048


def test_pipelines_of_up_to_64_stages_are_searched():
    assert pipeline_depths(128) == [1, 2, 4, 8, 16, 32, 64]
    assert pipeline_depths(96)[-3:] == [24, 32, 48]


def said(**change):
    asked = {
        "model": "m", "shape": LLAMA_405B, "gpu": "h100-80gb", "gpus": [1024], "seq_length": 8192,
        "global_batch_size": None, "precision": "bf16", "framework": "scaling",
        "engine": "deepspeed",
    }  # fmt: skip
    return " ".join(remarks(**{**asked, **change}))


def test_the_assumed_batch_is_printed_and_a_huge_one_is_a_warning():
    assert "assumed: 1024 GPUs: 1,024 sequences, 8.39 M tokens a step" in said()
    huge = said(gpus=[16384], global_batch_size=16384, seq_length=4096)
    assert "warning: 16384 GPUs: 16,384 sequences, 67.1 M tokens a step" in huge
    assert "assumed" not in huge
    assert "warning" not in said()


def test_software_that_is_not_known_by_name_is_told_with_what_is_assumed():
    assert "framework megtron is not known by name; assumed: " in said(framework="megtron")
    assert "known by name" not in said(framework="Megatron-LM") + said()


def test_an_engine_without_interleaving_is_told_from_what_was_published():
    sentence = said()
    assert "engine deepspeed lacks what the published layout nearest to m on 1024 GPUs uses" in (
        sentence
    )
    assert "interleaved" in sentence or "virtual_stages" in sentence
    assert "interleaved" in said(gpus=[16384]).split("lacks", 1)[-1]
    assert "lacks" not in said(framework="NeMo v25.02")
    assert "lacks" not in said(shape=LLAMA_13B)  # nobody here published a model like it
    assert "interleaved" not in said(engine="torch").split("lacks", 1)[-1]


def test_the_first_is_no_faster_than_itself_and_the_others_are_likely_slower():
    several = ask(gpus=[64], top=10)[64]
    assert several[0].beats_first == pytest.approx(0.5)
    assert all(0 < one.beats_first < 0.6 for one in several[1:])
    assert all(0.5 < one.fits_chance <= 1 for one in several)
    assert several[0].predicted_own_sigma > 0


def test_what_the_work_asks_for_is_the_same_in_every_layout_and_has_its_price():
    experts = ModelShape(
        num_layers=48, hidden_size=2048, num_heads=32, num_kv_heads=4, head_dim=128,
        ffn_hidden_size=6144, vocab_size=151936, num_experts=128, experts_per_token=8,
        expert_ffn_hidden_size=768,
    )  # fmt: skip
    options = {"shape": experts, "gpus": [32], "framework": "Megatron-Bridge", "top": 50}
    even, learned = (
        ask(**options, setting=setting)[32] for setting in (None, {"routing": "learned"})
    )
    assert {one.layout.routing for one in even} == {"balanced"}
    assert {one.layout.routing for one in learned} == {"learned"}
    assert learned[0].step_time_s > even[0].step_time_s


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ({"routeing": "learned"}, "--setting routeing: did you mean 'routing'"),
        ({"routing": "learnt"}, "--setting routing=learnt: did you mean 'learned'"),
    ],
)
def test_a_setting_nobody_knows_is_one_sentence(setting, sentence):
    with pytest.raises(InputError, match=sentence):
        ask(setting=setting)
