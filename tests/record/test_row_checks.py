"""Each thing that cannot be has its sentence, and what can be has none."""

import dataclasses
import typing

import pyarrow as pa
import pytest

from scaling.record.files import arrow_schema
from scaling.record.row import Outcome, Row
from scaling.record.row_checks import NEEDED, invalid_row_reasons
from tests.analyse.conftest import some_point
from tests.report.synthetic_study import cpu_plan, gpu_plan, measured, row, timed_row

pytestmark = pytest.mark.slow

GOOD = timed_row(some_point(2, tp=2), 2.0)
NAN, INFINITE = float("nan"), float("inf")


def reason_of(*rows, source="measured", **changes):
    records = [{**dataclasses.asdict(one), **changes} for one in rows or (GOOD,)]
    nullable = pa.schema([field.with_nullable(True) for field in arrow_schema(Row)])
    (reason,) = set(
        invalid_row_reasons(pa.Table.from_pylist(records, schema=nullable), source=source)
    )
    return reason


def test_what_a_study_measures_and_how_it_fails_can_be():
    for plan in (cpu_plan(), gpu_plan()):
        assert reason_of(*measured(plan.points)) is None
    for outcome in set(typing.get_args(Outcome)) - {"ok"}:
        assert reason_of(row(some_point(), outcome)) is None


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"step_time_s": NAN}, "step_time_s=nan: must be a finite number above 0"),
        ({"step_time_s": -1.0}, "step_time_s=-1.0: must be a finite number above 0"),
        ({"step_time_s": None}, "outcome=ok without a step_time_s"),
        ({"step_time_low_s": 2.5}, "step_time_s=2.0: lies outside its own interval"),
        ({"step_times_s": [2.0, 0.0]}, "step_times_s: each must be a finite number above 0"),
        ({"step_times_s": [3.0]}, "step_time_s=2.0: lies outside its own step_times_s"),
        ({"step_times_s": []}, "step_times_s: is empty"),
        (
            {"losses": [7.0, NAN]},
            "losses: each must be a finite number; a training that diverged has no speed",
        ),
        ({"started_at": "noon"}, "started_at='noon': must be a time in UTC, ISO 8601"),
        ({"world_size": 4}, "world_size=4: is not tp x pp x cp x dp"),
        (
            {"world_size": 2**62, "tp": 2**62, "dp": 2**62},
            "world_size=4611686018427387904: must be at most",
        ),
        (
            {"global_batch_size": 9},
            "global_batch_size=9: is not micro_batch_size x gradient_accumulation_steps x dp",
        ),
        ({"tokens_per_step": 5}, "tokens_per_step=5: is not global_batch_size x seq_length"),
        ({"zero_stage": 9}, "zero_stage=9: must be 0, 1, 2 or 3"),
        ({"duration_s": -1.0}, "duration_s=-1.0: must be a finite number of at least 0"),
        ({"outcome": "fast"}, "outcome='fast': must be one of ok, oom, timeout, "),
        ({"outcome": "\x1b[31m" + "x" * 99}, "outcome='?[31m" + "x" * 35 + "': must be one of"),
        *(
            ({"grad_norms": [1.0, bad]}, "grad_norms: each must be a finite number of at least 0")
            for bad in (NAN, INFINITE, -1.0)
        ),
        ({"engine": "!x"}, "engine='!x': must be one of "),
        ({"tp": None}, "tp is missing"),
        ({"cluster": ""}, "cluster is empty"),
        ({"point_id": "../x"}, "point_id='../x': must be letters, digits"),
        ({"vocab_size": 2**62}, "vocab_size=4611686018427387904: must be at most 10,000,000"),
        ({"energy_j": 1e300}, "energy_j=1e+300: must be at most 1e+18"),
        ({"outcome": "oom"}, "outcome=oom with step_time_s: only ok has numbers"),
        (
            {"peak_flop_per_s": 1e6},
            "step_time_s=2.0: would take more FLOP/s than peak_flop_per_s of every GPU",
        ),
        *(({name: None}, f"{name} is missing") for name in NEEDED),
    ],
    ids=str,
)
def test_what_cannot_be_has_its_sentence(changes, sentence):
    assert str(reason_of(**changes)).startswith(sentence)


def test_more_than_the_peak_by_the_convention_of_mfu_alone_can_be():
    """It counts all of causal attention, of which a kernel computes half."""
    assert reason_of(model_flops_per_token=10**15) is None


def test_an_encoder_decoder_has_twice_the_tokens():
    assert reason_of(family="t5", tokens_per_step=2 * GOOD.tokens_per_step) is None


def test_rows_of_others_need_not_say_what_only_our_own_runs_know():
    unsaid = {"attempt": None, "duration_s": None, "started_at": None, "dp": None, "family": None}
    assert reason_of(source="published", **unsaid) is None
    assert reason_of(source="published", step_time_s=0.0) is not None


def test_a_table_of_few_columns_is_judged_by_what_it_has():
    few = pa.table({"outcome": ["ok"], "step_time_s": [-1.0]})
    assert invalid_row_reasons(few) == ["point_id is missing"]
