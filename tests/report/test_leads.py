"""No title names a winner that noise could have chosen."""

import random
import re

import pytest

from scaling.report.sections import choice_findings, findings, size_findings
from scaling.report.sections.leads import NOISE_FLOOR, PREDICTED_TIE, noise
from scaling.report.tables import Tables

GPUS = {"GPU": "GPU", "GPUs": "GPUs"}
RATES = ("tokens_per_s", "tokens_per_s_per_gpu", "runner_up_tokens_per_s", "mean_ratio")


def tables(lead, series="measured"):
    """Two choices of each kind, the second faster by `lead`, a ratio; no intervals."""
    pair = (100.0, 100.0 * (1 + lead))
    common = {"series": series, "world_size": 8, "outcome": "ok", "layout_name": "a", "mfu": 0.4}
    best = common | {"runner_up_layout_name": "b", "tied": None, "speed_up": 1.0}
    return Tables(
        {
            "levels": [
                common | {"axis": axis, "level": level, "name": f"{axis} {level}",
                          "least_memory_bytes": None, "tokens_per_s": rate}
                for axis, pair in (("tp", pair), ("ZeRO", (100.0, 100.0 * (1 + 0.8 * lead))))
                for level, rate in zip("12", pair, strict=True)
            ],
            "map": [
                common | {"tp": tp, "pp": 1, "status": "ok", "tokens_per_s_per_gpu": rate,
                          "share_of_best": rate / pair[1]}
                for tp, rate in zip((1, 2), pair, strict=True)
            ],
            "batches": [
                common | {"precision": "bf16", "micro_batch_size": size, "tokens_per_s": rate}
                for size, rate in zip((1, 2), pair, strict=True)
            ],
            "best": [
                best | {"tokens_per_s": pair[1], "runner_up_tokens_per_s": pair[0]},
                best | {"world_size": 16, "tokens_per_s": pair[0], "speed_up": pair[0] / pair[1],
                        "runner_up_tokens_per_s": 50.0, "efficiency": 0.5},
            ],
            "fixed_layout": [common | {"world_size": 16, "share_of_best": 1 / (1 + lead)}],
            "effects": [common | {"name": "tp 2", "pairs": 9, "mean_ratio": 1 + lead}],
        }
    )  # fmt: skip


def shaken(given, seed):
    """The same study measured again: every rate up to 0.5 % off."""
    draw = random.Random(seed)
    rows = {
        name: [
            row | {key: row[key] * draw.uniform(0.995, 1.005) for key in RATES if key in row}
            for row in table
        ]
        for name, table in given.records.items()
    }
    for row in rows["best"]:
        row["speed_up"] = row["tokens_per_s"] / rows["best"][0]["tokens_per_s"]
    top = max(row["tokens_per_s_per_gpu"] for row in rows["map"])
    for row in rows["map"]:
        row["share_of_best"] = row["tokens_per_s_per_gpu"] / top
    return Tables(rows)


TITLES = {
    "levels": lambda given: choice_findings.levels_title(given, 8, GPUS),
    "degrees": lambda given: choice_findings.degrees_title(given, 8, GPUS),
    "batches": lambda given: choice_findings.batches_title(given, 8, GPUS),
    "tensor": lambda given: choice_findings.tensor_title(given, GPUS),
    "zero": lambda given: choice_findings.zero_title(given, GPUS),
    "layouts": lambda given: size_findings.layouts_title(given, 8, GPUS),
    "throughput": lambda given: size_findings.throughput_title(given, GPUS),
    "map": lambda given: findings.map_title(given, 8, GPUS),
    "efficiency": lambda given: findings.efficiency_title(given, GPUS),
    "effects": lambda given: findings.effects_title(given),
}
EVEN = re.compile(r"\btie|noise|same|equal|too$")


@pytest.mark.parametrize("title", TITLES)
@pytest.mark.parametrize("lead", [0.0015, 0.004, 0.008])
def test_a_lead_within_noise_is_claimed_by_no_title_however_the_rates_fall(title, lead):
    said = {TITLES[title](shaken(tables(lead), seed)) for seed in range(20)}
    assert len(said) == 1, said
    assert EVEN.search(said.pop())


@pytest.mark.parametrize("title", TITLES)
def test_a_clear_lead_is_claimed_however_the_rates_fall(title):
    said = {
        re.sub(
            r"[×\d.]+(\s%|×| as fast| on average)|[\d.]+×",
            "#",
            TITLES[title](shaken(tables(0.3), seed)),
        )
        for seed in range(20)
    }
    assert len(said) == 1
    assert not EVEN.search(said.pop())


def test_a_prediction_needs_a_longer_lead_than_a_measurement():
    assert "tie" not in TITLES["batches"](tables(0.03))
    assert "tie" in TITLES["batches"](tables(0.03, series="predicted"))


def test_rows_without_intervals_have_a_noise_floor_and_noisy_repeats_raise_it():
    row = {"series": "measured", "interval_half_width": None, "repeat_half_spread": None}
    assert noise(Tables({"noise": [row]}), "measured") == NOISE_FLOOR
    assert noise(Tables({"noise": [row]}), "predicted") == PREDICTED_TIE
    assert noise(Tables({"noise": [row | {"repeat_half_spread": 0.05}]}), "measured") == 0.1


@pytest.mark.parametrize(
    ("stages", "title"),
    [
        ([3, 3], "Only ZeRO 3 ran: there is nothing to compare"),
        ([], "No ZeRO can be compared: nothing ran"),
    ],
)
def test_where_one_zero_stage_was_tried_the_title_says_which(stages, title):
    rows = [{"outcome": "ok", "zero_stage": stage} for stage in stages]
    assert choice_findings.zero_title(Tables({"levels": [], "statistics": rows}), GPUS) == title
