"""The answer as a purchase, on tables written by hand."""

import dataclasses
import datetime
import json

import pytest
import yaml

from scaling.layout.axes import DEFAULTS
from scaling.report.sections import purchase
from scaling.report.sections.runs import runs
from scaling.report.tables import Tables
from tests.shipped import MODELS

DAY = 24.0
GPU = {"GPU": "GPU", "GPUs": "GPUs"}


def option(size, hours, *, gpu_hours=None, **more):
    cost = size * hours if gpu_hours is None else gpu_hours
    return {
        "size": size, "what": f"{size} GPUs with ZeRO-3", "hours": hours, "gpu_hours": cost,
        "verb": "Use", "undecided": None, "source": "measured", "level": 95,
        "low": 0.9 * hours, "high": 1.1 * hours, **more,
    }  # fmt: skip


OPTIONS = [option(8, 10 * DAY), option(16, 6 * DAY), option(32, 4 * DAY), option(64, 3 * DAY)]


def sizes_of(chosen):
    return [one and one["size"] for one in chosen]


@pytest.mark.parametrize("sizes", [[16, 8, 32], [8, None, 16], [64, 32, None]])
def test_the_next_cheaper_and_the_next_faster_size_stand_beside_a_choice(sizes):
    assert sizes_of(purchase.choose(OPTIONS, sizes[0])) == sizes


def test_the_headline_is_a_purchase_and_a_red_item_takes_its_verb():
    one = option(64, 2.8 * DAY / 135e9, gpu_hours=4560 / 135e9)
    said = purchase.headline(one, 135e9, 2.5, GPU).replace("\u00a0", " ").replace("\u202f", " ")
    assert said == "Use 64 GPUs with ZeRO-3: 2.80 days, $11.4 k for 135 G tokens."
    red = one | {"undecided": "Not decided: the machine was busy"}
    assert purchase.headline(red, 135e9, 2.5, GPU) == "Not decided: the machine was busy."


def test_an_alternative_has_the_interval_of_its_time_and_its_source():
    offer = purchase.offer(option(8, 40.0, source="predicted", level=80), 1, None, GPU)
    assert (
        offer.replace("\u00a0", " ")
        .replace("\u202f", " ")
        .endswith(": 40.0 hours, 320 GPU‑hours (36.0–44.0 hours, 80 % interval), predicted")
    )


def test_the_interval_of_time_and_cost_has_its_level():
    one = option(8, 100 * DAY, undecided=None)
    said = purchase.between(one, 1, 2.5, GPU).replace("\u00a0", " ").replace("\u202f", " ")
    assert said == "Between 90.0 and 110 days, $43.2 k and $52.8 k (95 % interval)."
    mixed = purchase.between(option(8, 48.0, undecided=None), 1, None, GPU)
    assert mixed.startswith("Between 1.80 and 2.20\u00a0days, ")
    red = purchase.between(one | {"undecided": "Not decided: the machine was busy"}, 1, None, GPU)
    assert red.startswith("These runs say 8 GPUs with ZeRO-3: 100\u00a0days, ")


def size(**changes):
    row = {
        "group_id": 1, "world_size": 8, "layout_name": "ZeRO-3", "source": "measured",
        "slowdown_share": None, "num_alloc_retries": None, "losses_agree": True, "mfu": 0.4,
        "single_run": False, "disturbed_points": None, "advised": True, "close": False,
        "fits_probability": 1.0, "predicted_memory_bytes": 2**30, "close_layouts": 1,
        "expected_loss": 0.004, "candidate": True, "load": 0.5, "others_share": None,
        "candidates": 2, "next_points": 0, "suspended_s": 0.0, "longest_step": 1.1,
        "started_at": "2026-11-20T10:00:00Z", "stack_fingerprint": "data sheet",
    }  # fmt: skip
    return row | changes


def tables(*estimates, **rows):
    noise = {"sigma": 0.007, "assumed": False}
    progress = {"waiting": 0, "points": 9, "failed": 0, "refusals": 0}
    given = {
        "estimates": list(estimates or [size()]), "hosts": [], "noise": [noise], "accuracy": [],
        "progress": [progress], "returns": [], "knees": [], "statistics": [], "time_split": [],
    }  # fmt: skip
    return Tables(given | rows)


TABLES = ("hosts", "noise")


@pytest.mark.parametrize(
    ("changes", "item"),
    [
        ({"load": 9.0, "others_share": 0.01}, ("good", "The machine was quiet")),
        ({"others_share": 0.45},
         ("bad", "The machine was busy: others took 45 % of the processors at 8 GPUs")),
        ({"suspended_s": 7200.0}, ("warn", "Its runs were suspended for 2.00\u00a0hours")),
        ({"longest_step": 12.0}, ("warn", "A step took 12 times the median: a rank or its host was "
                                          "stopped")),
        ({"others_share": 0.06}, ("warn", "Something else ran on the machine: others took 6 % of "
                                  "the processors at 8 GPUs")),
        ({"load": 12.0}, ("bad", "The machine was busy: load 12 times the ranks' own threads "
                          "before the start at 8 GPUs")),
        ({"load": 1.5}, ("warn", "Something else ran on the machine: load 1.5 times the ranks' "
                         "own threads before the start at 8 GPUs")),
        ({"losses_agree": False}, ("bad", "The losses of this layout differ from those of the "
                                   "same training")),
        ({"mfu": 1.2}, ("bad", "MFU is 120 %, more than the device can give")),
        ({"slowdown_share": 0.5}, ("bad", "Heat or hardware slowed GPUs in 50 % of the time")),
        ({"disturbed_points": ["zero3-r1"]},
         ("warn", "A run of ZeRO-3 was disturbed and does not count: zero3-r1")),
        ({"disturbed_points": ["zero3-r0", "zero3-r1"]},
         ("warn", "Repeats of ZeRO-3 disagree, and which is right is unknown: zero3-r0, zero3-r1")),
        ({"disturbed_points": ["zero3-r0", "zero3-r1"], "advised": False},
         ("good", "Disturbed runs of 1 slower layout change nothing else")),
        ({"candidates": 1}, ("warn", "No other layout was compared at 8 GPUs")),
        ({"single_run": True}, ("warn", "This layout ran once; repeats of others differ by 0.7 %")),
        ({"source": "predicted", "fits_probability": 0.97},
         ("warn", "It fits with a chance of 97 % (1.00 GiB)")),
        ({"source": "predicted", "fits_probability": 0.9999},
         ("good", "It fits with a chance of over 99 % (1.00 GiB)")),
        ({"source": "predicted", "fits_probability": 0.6},
         ("bad", "It fits with a chance of 60 % (1.00 GiB)")),
        ({"noise": [{"sigma": 0.007, "assumed": True}]},
         ("warn", "Every layout ran once; a noise of 0.7 % is assumed")),
        ({"noise": [{"sigma": 0.08, "assumed": False}]},
         ("warn", "Repeats differ by 8.0 %: a run was disturbed, or the machine is noisy")),
        ({"hosts": [{"host": "node-3", "effect": 0.08, "effect_low": 0.07, "effect_high": 0.09,
                     "level": 0.95}]},
         ("warn", "Slow: node-3 by 8 % (7–9 %, 95 % interval); the rates are corrected for it")),
        ({}, ("good", "Repeats differ by 0.7 %")),
        ({}, ("good", "Measured here, last on 2026-11-20")),
    ],
)  # fmt: skip
def test_the_health_line_says_what_speaks_against_the_answer(changes, item):
    row = size(**{name: value for name, value in changes.items() if name not in TABLES})
    given = {name: changes[name] for name in changes if name in TABLES}
    found = purchase.health(tables(row, **given), row)
    assert item in [(state, words.replace("\u202f", " ")) for state, words in found]
    assert [state for state, _ in found] == sorted(
        (state for state, _ in found), key=("bad", "warn", "good").index
    )


def test_a_step_that_the_host_bounds_is_said_at_its_size():
    split = [{"world_size": 8, "host_bound": True}, {"world_size": 16, "host_bound": None}]
    said = ("warn", "The host's launches, not the GPUs, bound a step, as predicted")
    told = tables(size(), time_split=split)
    assert said in purchase.health(told, size())
    assert said not in purchase.health(told, size(world_size=16))


def test_a_machine_that_was_busy_at_a_size_beside_takes_the_verb():
    """1 to 2 is slow because others ran at 2, so 1 is no answer; the step to 8 is far away."""
    rows = [
        size(world_size=count, others_share=share)
        for count, share in ((1, 0.0), (2, 0.5), (4, 0.0), (8, 0.0))
    ]
    steps = [{"from_world_size": one, "to_world_size": 2 * one} for one in (1, 2, 4)]
    told = tables(*rows, returns=steps)
    states = [purchase.health(told, row)[0][0] for row in rows]
    assert states == ["bad", "bad", "bad", "good"]


@pytest.mark.parametrize(
    ("stack", "until", "words"),
    [
        ("data sheet", None, "from data sheets"),
        ("scaling|h100", "2026-11-27T23:00:00Z",
         "calibrated on rows of scaling on h100 until 2026-11-27 (1 day old)"),
        ("scaling|h100 (other cluster)", "2026-08-30T10:00:00Z",
         "calibrated on rows of scaling on h100 (other cluster) until 2026-08-30 (90 days old)"),
        ("scaling|h100", None, "calibrated on rows of scaling on h100"),
    ],
)  # fmt: skip
def test_a_prediction_says_the_age_of_its_calibration(stack, until, words):
    row = size(source="predicted", stack_fingerprint=stack, started_at=until)
    assert purchase._calibration_words(row, datetime.date(2026, 11, 28)) == words
    stands = [said for _, said in purchase.health(tables(row), row) if "Predicted" in said]
    assert stands[0].startswith("Predicted, not measured, ")


def test_the_largest_size_says_that_no_larger_one_was_tried():
    step = {
        "from_world_size": 8, "to_world_size": 16, "faster": 1.5, "faster_low": 1.4,
        "faster_high": 1.6, "level": 0.95,
    }  # fmt: skip
    given = tables(size(), size(world_size=16), returns=[step])
    told = [purchase._returns(given, at).replace("\u202f", " ") for at in (8, 16)]
    assert told[0] == "8 to 16 trains 50 % faster (40–60 %, 95 % interval)."
    assert told[1] == f"{told[0]} No larger size was tried."


def test_an_answer_that_is_missing_has_the_commonest_reason():
    progress = {"points": 3, "failed": 3, "waiting": 0, "refusals": 2}
    failed = [size(outcome="oom", error_message=text) for text in ("a.", "b", "a.")]
    assert purchase.why_nothing(tables(*failed, progress=[progress])) == (
        "No layout ran: 3 of 3 points failed, most often: a."
    )
    refused = tables(progress=[progress | {"points": 0}], refused=[{"reason": "tp=3"}])
    assert purchase.why_nothing(refused) == (
        "Nothing can run: all 2 combinations were refused, most often: tp=3."
    )


def test_too_close_to_call_names_candidates_and_the_price_of_choosing():
    rows = [size(layout_name=name, close=True, p_best=p) for name, p in (("a", 0.6), ("b", 0.4))]
    said = purchase.too_close(tables(*rows), size(close_layouts=2)).replace("\u202f", " ")
    assert said == (
        "Too close to call: the best is a (60 %) or b (40 %). "
        "Whichever it is, the advised layout is expected to be 0.4 % slower."
    )
    assert purchase.too_close(tables(), size()) == ""
    counted = size(close_layouts=2, next_points=2, next_gpu_hours=3.0)
    more = purchase.too_close(tables(*rows), counted)
    assert more.endswith(" What to measure next: 2 points, 3.00 GPU-hours.")


@pytest.mark.parametrize(
    ("source", "knee", "opens"),
    [
        (("measured",) * 4, 16, 16),
        (("measured", "measured", "predicted", "predicted"), 64, 16),
        (("predicted",) * 4, 32, 32),
        (("measured",) * 4, None, 64),
    ],
)
def test_the_page_opens_at_the_knee_among_sizes_that_ran(source, knee, opens):
    rows = [
        {"world_size": n, "source": one} for n, one in zip((8, 16, 32, 64), source, strict=True)
    ]
    knees = [] if knee is None else [{"knee_world_size": knee}]
    assert purchase.start(tables(sizes=rows, knees=knees)) == opens


SETTING = {
    "model": "llama2_7b", "cluster": "h100", "study_kind": "strong", "kept_batch_size": 64,
    "seq_length": 4096, "gpus_per_node": 8, "gpu": "h100-80gb",
} | dataclasses.asdict(MODELS["llama2_7b"])  # fmt: skip
ROW = DEFAULTS | {
    "world_size": 16, "zero_stage": 3, "zero_shard_size": 8, "micro_batch_size": 2, "dp": 16,
    "gradient_accumulation_steps": 2, "global_batch_size": 64,
}  # fmt: skip


def test_a_layout_is_copied_as_a_deepspeed_configuration_and_as_a_study():
    texts = runs(SETTING, ROW, programs=True)
    config = json.loads(texts["DeepSpeed"]["file"])
    assert (config["train_batch_size"], config["train_micro_batch_size_per_gpu"]) == (64, 2)
    assert config["zero_optimization"]["zero_hpz_partition_size"] == 8
    assert texts["DeepSpeed"]["command"].startswith("deepspeed --num_nodes 2 --num_gpus 8 ")
    study = yaml.safe_load(texts["This project"]["file"])
    assert study["kind"] == "strong"
    assert study["axes"]["zero_shard_size"] == 8
    assert "engine" not in study["axes"]  # as by default
    assert "DeepSpeed" not in runs(SETTING, ROW | {"engine": "torch"}, programs=True)
    assert list(runs(SETTING, ROW, programs=False)) == ["This project"]


def test_without_the_whole_shape_of_the_model_there_are_no_other_programs():
    assert list(runs(SETTING | {"num_heads": None}, ROW, programs=True)) == ["This project"]
    later = runs(SETTING | {"num_experts": None}, ROW, programs=True)  # a part that came later
    assert "NeMo" in later


def test_a_copied_study_whose_model_came_from_a_config_json_says_so():
    def notes(**changes):
        return runs(SETTING | changes, ROW, programs=False)["This project"]["lines"]

    assert notes() == notes(num_heads=None) == []
    (line,) = notes(model="mistral-7.248b")
    assert "has no mistral-7.248b of this shape" in line
    assert len(notes(vocab_size=64)) == 1  # another model of the same name


def test_a_copied_study_is_a_study(project):
    from scaling.study.load import load_study

    setting = {
        "model": "tiny", "cluster": "local", "study_kind": "strong", "kept_batch_size": 8,
        "seq_length": 128, "gpus_per_node": None,
    } | dict.fromkeys(dataclasses.asdict(MODELS["tiny"]))  # fmt: skip
    row = DEFAULTS | {"world_size": 2, "zero_stage": 1, "precision": "fp32", "engine": "torch"}
    row["global_batch_size"] = 8
    path = project / "config" / "studies" / "copied.yaml"
    path.write_text(runs(setting, row, programs=False)["This project"]["file"])
    assert load_study(path, project / "config").axes["zero_stage"] == (1,)
