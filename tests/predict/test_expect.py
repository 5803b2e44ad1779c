"""`expect`: the place of a number in what is expected, hints, published rows, faster layouts."""

import dataclasses
import math

import pytest

from scaling.layout.axes import AXES
from scaling.layout.layout import Layout
from scaling.predict.advise import expectation
from scaling.predict.advise.candidates import Search
from scaling.predict.advise.expectation import PARTS, expect
from scaling.predict.cost.step import TIME_TERMS
from scaling.predict.read.calibration import Calibration
from scaling.predict.read.clusters import config_file, site_clusters
from scaling.study.load import load_models
from tests.predict.conftest import only

MODELS = load_models(config_file("models.yaml"))

PASSED = ("calibration", "peak_memory_bytes")


def asked(tokens, *, model="llama3_8b", cluster="h100-80gb-dgx", gpus=64, batch=1024, **other):
    more = {name: other.pop(name) for name in PASSED if name in other}
    axes = {"zero_stage": 1, **other}
    replica = axes.get("tp", 1) * axes.get("pp", 1) * axes.get("cp", 1)
    dp = gpus // replica
    layout = Layout(dp=dp, gradient_accumulation_steps=batch // dp, seq_length=4096, **axes)
    return expect(search(layout, model, cluster), layout, tokens, **more)


def search(layout, model="llama3_8b", cluster="h100-80gb-dgx"):
    where = {"model": model, "shape": MODELS[model], "cluster": cluster}
    return Search(**where, clusters=site_clusters(), gpus=layout.world_size)


def test_the_percentile_is_that_of_a_normal_error_worked_by_hand():
    # data sheets of known software, no tensor-parallel ranks: the parts 0.06, 0.06, 0.03, 0.06
    # make 0.1082; a fifth more time is ln 1.2 / 0.1082 = 1.686 of it: 4.59 % are slower yet
    centre = asked(1000.0)["expected"]
    told = asked(centre / 1.2)
    assert told["percentile"] == pytest.approx(0.0459, abs=2e-4)
    assert asked(centre * 1.2)["percentile"] == pytest.approx(1 - 0.0459, abs=2e-4)
    assert told["low"] == pytest.approx(centre / math.exp(1.2816 * 0.10817), rel=1e-4)


def test_parts_hold_every_term_and_add_up_to_the_step():
    told = asked(6300.0, tp=2, pp=2)
    assert sum(told["parts"].values()) == pytest.approx(told["step_time_s"])
    assert sorted(term for terms in PARTS.values() for term in terms) == sorted(TIME_TERMS)
    assert told["parts"]["pipeline bubble"] > 0


def test_with_rows_of_the_cluster_the_source_is_yours(calibrated):
    stack = dataclasses.replace(only(calibrated), framework="scaling")
    here = {"model": "llama2_7b", "cluster": stack.cluster, "gpus": 8, "batch": 64}
    named = Calibration(source="rows.csv", stacks={f"scaling|{stack.cluster}": stack})
    told = asked(3000.0, calibration=named, **here)
    assert (told["source"], told["rows_of_yours"]) == ("yours", stack.rows_timed)
    assert told["expected"] != asked(3000.0, **here)["expected"]


def test_rows_of_a_log_serve_their_trainer(calibrated):
    stack = dataclasses.replace(only(calibrated), framework="megatron")
    named = Calibration(source="rows.csv", stacks={f"megatron|{stack.cluster}": stack})
    told = asked(
        3000.0, model="llama2_7b", cluster=stack.cluster, gpus=8, batch=8, engine="megatron",
        calibration=named,
    )  # fmt: skip
    assert told["source"] == "yours"
    assert told["parameters_from"] == f"megatron|{stack.cluster}"


def test_the_nearest_published_rows_are_of_that_model_and_gpu():
    told = asked(6300.0)
    assert len(told["published"]) == 2
    first, second = told["published"]
    assert (first["model"], first["world_size"], first["gpu"]) == ("llama3.1-8b", 64, "h100-80gb")
    assert (first["world_size"], first["layout"]) != (second["world_size"], second["layout"])
    assert first["distance"] <= second["distance"]


def test_faster_layouts_do_the_same_work_and_are_at_most_three(monkeypatch):
    told = asked(6300.0, tp=8, attention="cudnn")
    assert 1 <= len(told["faster"]) <= 3
    for one in told["faster"]:
        assert (one["gpus"], one["global_batch_size"], one["attention"]) == (64, 1024, "cudnn")
        assert one["gain"] == pytest.approx(told["step_time_s"] / one["step_time_s"] - 1)
        assert one["gain"] > 0
        assert 0.5 < one["chance"] <= 1
    assert told["why_none_faster"] is None
    least = told["faster"][0]["gain"]
    monkeypatch.setattr(expectation, "_WORTH", least)  # the others gain less
    assert [one["gain"] for one in asked(6300.0, tp=8, attention="cudnn")["faster"]] == [least]


def test_no_faster_layout_is_said_for_the_best_one():
    first = asked(6300.0, tp=8)["faster"][0]
    names = (*AXES, "dp", "gradient_accumulation_steps")
    best = Layout(**{name: first[name] for name in names}, seq_length=4096)
    told = expect(search(best), best, 6300.0)
    assert told["faster"] == []
    assert told["why_none_faster"] == "no other layout is expected to be faster"


def test_a_slow_number_names_link_norm_and_the_gap():
    told = asked(3000.0, tp=8)
    share = told["parts"]["tensor-parallel traffic"] / told["step_time_s"]
    factor = 1 + told["gap_s"] / told["parts"]["tensor-parallel traffic"]
    assert (
        f"a slow link: tensor-parallel traffic is {100 * share:.0f} % of the step; at "
        f"{factor:.1f} times its time it explains the gap"
    ) in told["looks"]
    assert any(look.startswith("an eager norm") for look in told["looks"])
    assert not any(look.startswith("allocator") for look in told["looks"])


@pytest.mark.parametrize(
    ("tokens", "asked_of", "look"),
    [
        (3000.0, {"peak_memory_bytes": 79 * 2**30}, "allocator retries: memory is "),
        (3000.0, {"model": "llama3_405b", "gpus": 8, "batch": 64},
            "the layout: it is expected to need "),
        (100.0, {"model": "qwen2_0_5b", "gpus": 8, "batch": 64}, "a busy host"),
    ],
)  # fmt: skip
def test_a_slow_number_names_its_first_cause(tokens, asked_of, look):
    told = asked(tokens, **asked_of)
    assert told["looks"][0].startswith(look)
    assert [one for one in told["looks"] if one.startswith("allocator")] == told["looks"][:1] * (
        "peak_memory_bytes" in asked_of
    )
    if told["fits_chance"] < 0.5:
        assert "layouts of llama3_405b fits: the smallest needs" in told["why_none_faster"]


def test_a_fast_number_may_be_of_a_whole_node_and_one_inside_needs_no_look():
    expected = asked(1000.0)["expected"]
    told = asked(8 * expected)
    assert told["place"] == "above"
    assert told["looks"][0] == "token counting: it is 8.0 times as much, as if of a node (8 GPUs)"
    assert asked(0.97 * expected)["looks"] == ["nothing: the number lies inside the interval"]
