"""Parameters that a calibration learns of rows, the errors of neighbours, and its file."""

import dataclasses
import json
import math
import re

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from threadpoolctl import threadpool_limits

from scaling.errors import InputError
from scaling.importing.reader import read_table
from scaling.predict.cost.model import predict
from scaling.predict.fit.calibrate import calibrate, of_commonest_fingerprints
from scaling.predict.fit.validation import trial
from scaling.predict.read.calibration import read_calibration, write_calibration
from scaling.predict.read.observed import observed_of
from scaling.predict.read.parameters import PARAMETERS
from scaling.predict.read.points import points_of
from scaling.predict.read.residual import NAMES, Residual, fitted_residual
from tests.predict import reference
from tests.predict.conftest import as_table, fitted_on, only, table_of

pytestmark = pytest.mark.slow


def test_calibration_finds_the_rates_of_the_machine_that_made_the_rows(calibrated):
    p = only(calibrated).parameters
    # the reference runs its matmuls at 62 % of peak whatever their size
    at_4096 = p["gemm_efficiency"].value * (4096 / (4096 + p["gemm_half_size"].value)) ** 3
    assert at_4096 == pytest.approx(0.62, rel=0.15)
    assert p["gemm_efficiency"].low < p["gemm_efficiency"].value < p["gemm_efficiency"].high


def test_world_sizes_never_seen_are_predicted(sweep):
    found = trial(as_table(sweep, "sweep"), calibrate_where="world_size < 32")
    data_sheet = trial(as_table(sweep, "sweep"), test_where="world_size >= 32").overall.step_time
    scores = found.overall
    assert scores.step_time["mape"] < 0.06
    assert scores.step_time["mape"] < 0.5 * data_sheet["mape"]
    assert scores.regret["mean"] < 0.05
    assert scores.coverage_80 > 0.6


def test_a_model_never_seen_is_predicted(sweep):
    scores = trial(as_table(sweep, "sweep"), calibrate_where="model != 'ref-7b'").overall
    sheet = trial(as_table(sweep, "sweep"), test_where="model = 'ref-7b'").overall
    # wider than all models seen, so the fit is followed half the way
    assert scores.step_time["mape"] < 0.7 * sheet.step_time["mape"]


def test_fit_or_out_of_memory_is_learned_from_outcomes_alone(sweep):
    memory = trial(as_table(sweep, "sweep"), calibrate_where="row_index % 2 = 0").overall.memory
    assert memory["balanced_accuracy"] > 0.9


def test_a_dozen_rows_help(sweep):
    few = trial(as_table(sweep, "sweep"), calibrate_where="step_time_s > 0 and row_index % 17 = 0")
    none = trial(as_table(sweep, "sweep"))
    assert 8 <= few.calibrated_rows <= 15
    assert few.overall.step_time["mape"] < 0.7 * none.overall.step_time["mape"]


def test_many_rows_of_one_kind_do_not_outweigh_a_few_of_another():
    def slower(tp: int, factor: float, sizes: tuple[int, ...]) -> list[dict[str, float]]:
        rows = [{"tp": tp, "dp": size // tp, "zero_stage": 1} for size in sizes]
        seconds = predict(points_of(as_table(table_of(*rows)))).step_time_s * factor
        return [{**row, "step_time_s": s} for row, s in zip(rows, seconds, strict=True)]

    def learned(*rows: dict[str, float]) -> float:
        return only(fitted_on(table_of(*rows))).parameters["gemm_efficiency"].value

    # one layout at many sizes errs in the same way at each
    few, many = slower(8, 1.2, (8, 512)), slower(8, 1.2, tuple(range(8, 520, 8)))
    other = slower(1, 1.0, (8,))
    prior = PARAMETERS["gemm_efficiency"].default
    assert learned(*few, *other) < prior
    assert learned(*few, *other) / learned(*many, *other) < 1.02


def test_what_the_rows_cannot_tell_stays_at_its_default_and_says_so(calibrated):
    p = only(calibrated).parameters
    for name in ("score_passes", "host_transport_s"):
        assert not p[name].identified
        assert p[name].value == pytest.approx(PARAMETERS[name].default, rel=0.02)
        assert p[name].reason


def test_every_value_stays_inside_its_physical_bounds(calibrated):
    for name, fitted in only(calibrated).parameters.items():
        known = PARAMETERS[name]
        assert known.low <= fitted.low <= fitted.value <= fitted.high <= known.high


def test_a_fit_is_the_same_whatever_number_of_threads_its_machine_gives(sweep):
    texts = set()
    for threads in (1, 2):
        with threadpool_limits(threads, "blas"):
            texts.add(fitted_on(sweep).to_json())
    assert len(texts) == 1


def test_one_stalled_row_does_not_move_the_fit(sweep):
    calm = only(fitted_on(sweep)).values
    rows = sweep.to_pylist()
    rows[3]["step_time_s"] *= 10
    stalled = only(fitted_on(pa.Table.from_pylist(rows, schema=sweep.schema)))
    assert stalled.values["gemm_efficiency"] == pytest.approx(calm["gemm_efficiency"], rel=0.03)


@pytest.fixture(scope="module")
def ran(sweep):
    return sweep.filter(pc.is_valid(sweep["step_time_s"]))


@pytest.mark.parametrize("rows", [0, 1, 2])
def test_few_rows_are_enough_to_calibrate_something(sweep, ran, rows):
    prediction = predict(points_of(as_table(sweep, "sweep")), fitted_on(ran.slice(0, rows)))
    assert np.isfinite(prediction.step_time_s).all()
    assert (prediction.low < prediction.step_time_s).all()


def test_one_row_pulls_the_prediction_of_its_own_layout(ran):
    one = ran.slice(0, 1)
    points = points_of(as_table(one, "one"))
    measured = one["step_time_s"][0].as_py()
    before, after = (
        abs(math.log(float(predict(points, c).step_time_s[0]) / measured))
        for c in (None, fitted_on(one))
    )
    assert after < 0.5 * before


def test_rows_that_all_ran_out_of_memory_calibrate_memory_only(sweep):
    failed = sweep.filter(pc.equal(sweep["outcome"], "oom"))
    calibration = fitted_on(failed)
    stack = only(calibration)
    assert stack.rows_timed == 0
    assert stack.rows_out_of_memory == failed.num_rows
    assert not stack.parameters["gemm_efficiency"].identified
    assert np.isfinite(predict(points_of(as_table(sweep, "sweep")), calibration).step_time_s).all()


def test_the_file_says_what_each_number_means(tmp_path, calibrated):
    write_calibration(tmp_path / "c.json", calibrated)
    record = json.loads((tmp_path / "c.json").read_text())
    assert record["schema"] == "scaling.calibration"
    (stack,) = record["stacks"].values()
    assert stack["rows_timed"] > 50
    for parameter in stack["parameters"].values():
        assert {"value", "low", "high", "default", "bounds", "unit", "meaning"} <= set(parameter)


def a_wider_error(record):
    next(iter(record["stacks"].values()))["errors"]["rest"] = 0.5


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        (lambda record: record.update(schema="other"), "this is no calibration file"),
        (lambda record: record.pop("stacks"), "calibrate again"),
        (lambda record: record.update(trust=-5), "calibrate again"),
        (lambda record: record.pop("digest"), "calibrate again"),
        (a_wider_error, "is not as `scaling calibrate` of this version wrote it"),
        ("[" * 100_000, "this is no calibration file"),
        ('{"schema": ', "this is no calibration file"),
        ("", "this is no calibration file"),
        ("[1]", "this is no calibration file"),
    ],
)
def test_a_changed_file_is_refused_by_one_sentence(tmp_path, calibrated, changed, sentence):
    record, path = json.loads(calibrated.to_json()), tmp_path / "c.json"
    if callable(changed):
        changed(record)
    path.write_text(json.dumps(record) if callable(changed) else changed)
    with pytest.raises(InputError, match=f"^{re.escape(str(path))}: .*{re.escape(sentence)}"):
        read_calibration(path)


def test_a_point_that_did_not_start_is_of_no_stack():
    failed = {"dp": 8, "outcome": "launch_failed", "stack_fingerprint": "b"}
    ran = {"dp": 8, "outcome": "ok", "step_time_s": 1.0, "stack_fingerprint": "a"}
    columns = as_table(table_of(ran, failed), "rows.csv")
    kept, several = of_commonest_fingerprints(columns, points_of(columns), observed_of(columns))
    assert (kept.all(), several) == (True, None)


def test_parameters_come_from_the_own_stack_or_its_kin_or_the_data_sheet(calibrated, sweep):
    row = sweep.slice(0, 1).to_pylist()[0]

    def source(**change):
        table = pa.Table.from_pylist([{**row, **change}])
        return predict(points_of(as_table(table, "t")), calibrated).parameters_from[0]

    own = "reference|a100-40gb-dgx"
    assert (source(), source(framework=None)) == (own, own)
    assert source(cluster="a100-80gb-dgx") == f"{own} (other cluster)"
    assert source(cluster="h100-80gb-dgx") == "data sheet"
    assert source(framework="someone else's") == "data sheet"


@pytest.fixture(scope="module")
def odd_sweep(tmp_path_factory):
    """Rows of the reference machine whose two-stage pipelines take a fifth longer."""
    rows = reference.rows()
    for row in rows:
        if row["step_time_s"] and int(row["pp"]) == 2:
            row["step_time_s"] = 1.2 * float(row["step_time_s"])
    return read_table(reference.write_csv(tmp_path_factory.mktemp("odd") / "odd.csv", rows))


@pytest.fixture(scope="module")
def odd(odd_sweep):
    """(points, observed, which rows were calibrated on, the calibration)."""
    fitted = np.arange(odd_sweep.rows.num_rows) % 2 == 0
    part = odd_sweep.filter(fitted)
    calibration = calibrate(points_of(part), observed_of(part), source="odd")
    return points_of(odd_sweep), observed_of(odd_sweep), fitted, calibration


def without(calibration):
    none = Residual(places=(), weights=())
    bare = {k: dataclasses.replace(s, residual=none) for k, s in calibration.stacks.items()}
    return dataclasses.replace(calibration, stacks=bare)


def test_a_process_gives_back_what_it_saw_and_nothing_far_away():
    places = np.zeros((3, len(NAMES)))
    places[:, 0] = [0.0, 0.5, 40.0]
    residual, _ = fitted_residual(places[:2], np.array([0.1, 0.1]))
    (*near, far), (*known, novel) = residual.at(places)
    assert near == pytest.approx([0.095] * 2, abs=0.01)
    assert known == pytest.approx([0.0] * 2, abs=0.03)
    assert (far, novel) == (pytest.approx(0.0, abs=1e-12), pytest.approx(1.0))


def test_rows_left_out_one_at_a_time_have_the_errors_of_a_fit_without_them():
    random = np.random.default_rng(0)
    places = np.zeros((6, len(NAMES)))
    places[:, :2] = random.normal(0, 0.7, (6, 2))
    off = random.normal(0, 0.1, 6)
    _, left_out = fitted_residual(places, off)
    for row in range(6):
        rest = np.arange(6) != row
        without, _ = fitted_residual(places[rest], off[rest])
        expected = off[row] - without.at(places[row : row + 1])[0][0]
        assert left_out[row] == pytest.approx(expected, abs=0.01)


def test_a_stalled_step_says_nothing_of_its_neighbours():
    places = np.zeros((2, len(NAMES)))

    def expected(rows, off):
        return fitted_residual(rows, np.array(off))[0].at(places)[0].tolist()

    assert expected(places, [0.1, 3.0]) == expected(places[:1], [0.1])
    assert expected(places, [3.0, 3.0]) == [0.0, 0.0]


def test_layouts_beside_calibrated_ones_take_over_what_those_are_off_by(odd):
    points, observed, fitted, calibration = odd
    held = ~fitted & observed.timed
    off = {
        name: np.abs(predict(points, one).step_time_s / observed.step_time_s - 1)[held].mean()
        for name, one in (("with", calibration), ("without", without(calibration)))
    }
    assert off["with"] < 0.8 * off["without"]


def test_the_terms_of_a_step_still_add_up(odd):
    points, _, _, calibration = odd
    found = predict(points, calibration)
    assert sum(found.time_terms.values()) == pytest.approx(found.step_time_s)
