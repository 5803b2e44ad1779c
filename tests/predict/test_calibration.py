import dataclasses
import json
import math

import numpy as np
import pyarrow as pa
import pytest
from threadpoolctl import threadpool_limits

from scaling.errors import InputError
from scaling.foreign.columns import Columns
from scaling.foreign.reading import read_table
from scaling.predict.cost.interval import distance_beyond, error_spread
from scaling.predict.cost.memory_odds import EVEN_ODDS, LEARNED_ODDS, fit_odds
from scaling.predict.cost.model import predict
from scaling.predict.fit.bands import HeldOut, band_of
from scaling.predict.fit.calibrate import calibrate, fit_outcomes, one_fingerprint_per_stack
from scaling.predict.fit.trial import trial
from scaling.predict.read.calibration import (
    AXES,
    Calibration,
    StackCalibration,
    read_calibration,
    write_calibration,
)
from scaling.predict.read.observed import observed_of
from scaling.predict.read.parameters import PARAMETERS
from scaling.predict.read.points import points_of
from scaling.predict.read.trust import new_values
from tests.predict.conftest import table_of

pytestmark = pytest.mark.slow


def fitted_on(table, **options):
    columns = Columns(table, "rows.csv")
    return calibrate(points_of(columns), observed_of(columns), source="rows.csv", **options)


def only(calibration: Calibration) -> StackCalibration:
    (stack,) = calibration.stacks.values()
    return stack


@pytest.fixture(scope="module")
def sweep(sweep_csv) -> pa.Table:
    return read_table(sweep_csv)


@pytest.fixture(scope="module")
def calibrated(sweep) -> Calibration:
    return fitted_on(sweep)


def test_calibration_finds_the_rates_of_the_machine_that_made_the_rows(calibrated):
    p = only(calibrated).parameters
    # the reference runs its matmuls at 62 % of peak whatever their size
    at_4096 = p["gemm_efficiency"].value * (4096 / (4096 + p["gemm_half_size"].value)) ** 3
    assert at_4096 == pytest.approx(0.62, rel=0.15)
    assert p["gemm_efficiency"].low < p["gemm_efficiency"].value < p["gemm_efficiency"].high


def test_world_sizes_never_seen_are_predicted(sweep):
    found = trial(sweep, "sweep", calibrate_where="world_size < 32")
    data_sheet = trial(sweep, "sweep", test_where="world_size >= 32").overall.step_time
    scores = found.overall
    assert scores.step_time["mape"] < 0.06
    assert scores.step_time["mape"] < 0.5 * data_sheet["mape"]
    assert scores.regret["mean"] < 0.05
    assert scores.coverage_80 > 0.6


def test_a_model_never_seen_is_predicted(sweep):
    scores = trial(sweep, "sweep", calibrate_where="model != 'ref-7b'").overall
    # wider than all models seen, so the fit is followed a part of the way (trust.py)
    assert scores.step_time["mape"] < 0.09


def test_fit_or_out_of_memory_is_learned_from_outcomes_alone(sweep):
    memory = trial(sweep, "sweep", calibrate_where="row_index % 2 = 0").overall.memory
    assert memory["balanced_accuracy"] > 0.9


def test_a_dozen_rows_help(sweep):
    few = trial(sweep, "sweep", calibrate_where="step_time_s > 0 and row_index % 17 = 0")
    none = trial(sweep, "sweep")
    assert 8 <= few.calibrated_rows <= 15
    assert few.overall.step_time["mape"] < 0.7 * none.overall.step_time["mape"]


def test_what_the_rows_cannot_tell_stays_at_its_default_and_says_so(calibrated):
    p = only(calibrated).parameters
    for name in ("flash1_efficiency", "math_passes", "zero3_exposed", "tp_network_latency_s"):
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
            texts.add(fitted_on(sweep, bands=False).to_json())
    assert len(texts) == 1


def test_one_stalled_row_does_not_move_the_fit(sweep):
    calm = only(fitted_on(sweep, bands=False)).values
    times = [s if s is None else 10 * s if i == 3 else s
             for i, s in enumerate(sweep["step_time_s"].to_pylist())]  # fmt: skip
    at = sweep.schema.get_field_index("step_time_s")
    stalled = only(fitted_on(sweep.set_column(at, "step_time_s", pa.array(times)), bands=False))
    assert stalled.values["gemm_efficiency"] == pytest.approx(calm["gemm_efficiency"], rel=0.03)


@pytest.mark.parametrize("rows", [0, 1, 2])
def test_few_rows_are_enough_to_calibrate_something(sweep, rows):
    ran = sweep.filter(pa.array([s is not None for s in sweep["step_time_s"].to_pylist()]))
    calibration = fitted_on(ran.slice(0, rows))
    prediction = predict(points_of(Columns(sweep, "sweep")), calibration)
    assert np.isfinite(prediction.step_time_s).all()
    assert (prediction.low < prediction.step_time_s).all()


def test_one_row_pulls_the_prediction_of_its_own_layout(sweep):
    ran = sweep.filter(pa.array([s is not None for s in sweep["step_time_s"].to_pylist()]))
    one = ran.slice(0, 1)
    points = points_of(Columns(one, "one"))
    measured = one["step_time_s"][0].as_py()
    before, after = (
        abs(math.log(float(predict(points, c).step_time_s[0]) / measured))
        for c in (None, fitted_on(one))
    )
    assert after < 0.5 * before


def test_rows_that_all_ran_out_of_memory_calibrate_memory_only(sweep):
    failed = sweep.filter(pa.array([o == "oom" for o in sweep["outcome"].to_pylist()]))
    stack = only(fitted_on(failed))
    assert stack.rows_timed == 0
    assert stack.rows_out_of_memory == failed.num_rows
    assert not stack.parameters["gemm_efficiency"].identified
    predict(points_of(Columns(sweep, "sweep")), fitted_on(failed))


def test_a_calibration_comes_back_from_its_file_as_it_was(tmp_path, calibrated, sweep):
    write_calibration(tmp_path / "c.json", calibrated)
    points = points_of(Columns(sweep, "sweep"))
    again = read_calibration(tmp_path / "c.json")
    assert predict(points, again).high == pytest.approx(predict(points, calibrated).high)


def test_the_file_says_what_each_number_means(tmp_path, calibrated):
    write_calibration(tmp_path / "c.json", calibrated)
    record = json.loads((tmp_path / "c.json").read_text())
    assert (record["schema"], record["version"]) == ("scaling.calibration", 1)
    (stack,) = record["stacks"].values()
    assert stack["rows_timed"] > 50
    for parameter in stack["parameters"].values():
        assert {"value", "low", "high", "default", "bounds", "unit", "meaning"} <= set(parameter)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda r: r.update(version=2), "version=2, this program reads 1"),
        (lambda r: r.update(schema="other"), "this is no calibration file"),
        (lambda r: r.pop("stacks"), "c.json: stacks: Field required; calibrate again"),
        (
            lambda r: next(iter(r["stacks"].values()))["parameters"]["gemm_efficiency"].update(
                value=7
            ),
            "gemm_efficiency=7.0 is outside 0.4 to 0.9",
        ),
    ],
)
def test_a_file_that_is_no_calibration_is_one_sentence(tmp_path, calibrated, change, sentence):
    record = json.loads(calibrated.to_json())
    change(record)
    (tmp_path / "c.json").write_text(json.dumps(record))
    with pytest.raises(InputError, match=sentence):
        read_calibration(tmp_path / "c.json")


def test_two_fingerprints_of_one_stack_are_never_averaged():
    rows = [{"dp": 8, "step_time_s": 1.0, "stack_fingerprint": name} for name in ("a", "b")]
    columns = Columns(table_of(*rows), "rows.csv")
    with pytest.raises(InputError, match="--where \"stack_fingerprint = 'a'\""):
        one_fingerprint_per_stack(columns, points_of(columns))


def test_parameters_come_from_the_own_stack_or_its_kin_or_the_data_sheet(calibrated, sweep):
    row = sweep.slice(0, 1).to_pylist()[0]

    def source(**change):
        table = pa.Table.from_pylist([{**row, **change}])
        return predict(points_of(Columns(table, "t")), calibrated).parameters_from[0]

    assert source() == "reference|a100-40gb-dgx"
    assert source(framework=None) == "reference|a100-40gb-dgx"
    assert source(cluster="a100-80gb-dgx") == "reference|a100-40gb-dgx (other cluster)"
    assert source(cluster="h100-80gb-dgx") == "data sheet"
    assert source(framework="someone else's") == "data sheet"


def spread(stack, roughness=1.0, **new):
    values = {"world_size": 32.0, "seq_length": 2048.0, "model": "ref-3b", "hidden_size": 2560.0}
    values |= {"gpus_per_node": 8.0, "experts": False} | new
    names = ("unknown_software", "lean_kernels")
    flags = {name: values.pop(name) for name in names if name in values}
    arrays = {name: np.array([value]) for name, value in values.items()}
    axes = {name: arrays.pop(name) for name in AXES}
    beyond = arrays.pop("beyond", np.zeros(1))
    return error_spread(
        np.array([1.0]), np.array([roughness]), stack,
        new=new_values(stack, axes, beyond) if stack else {}, world_size=axes["world_size"],
        **flags, **arrays,
    )  # fmt: skip


def band_width(stack, **new) -> float:
    found = spread(stack, **new)
    return float(found.high[0] / found.low[0])


def test_intervals_widen_with_the_distance_from_what_was_calibrated(calibrated):
    stack = only(calibrated)
    widths = [band_width(stack, world_size=size) for size in (32.0, 64.0, 256.0, 2048.0)]
    assert widths == sorted(set(widths))
    assert band_width(stack, seq_length=8192.0) > band_width(stack)
    assert band_width(stack, hidden_size=8192.0, model="new") > band_width(stack)
    assert band_width(None) > band_width(stack)


def test_what_a_new_sequence_length_shares_leaves_ratios_alone(calibrated):
    stack = only(calibrated)
    seen, longer = spread(stack), spread(stack, seq_length=8192.0)
    assert longer.size_sigma == seen.size_sigma
    larger = spread(stack, world_size=256.0)
    assert larger.size_sigma > seen.size_sigma


def test_a_fit_that_is_followed_in_part_may_be_right_after_all(calibrated):
    stack = only(calibrated)
    values = {"hidden_size": 8192.0, "model": "new"}
    wide = spread(stack, **values, unfollowed=0.2)
    # the whole fit's step lies inside, and it moves all layouts of a model alike
    assert wide.high[0] > np.exp(0.2)
    assert wide.own_sigma == spread(stack, **values).own_sigma


def test_a_model_with_experts_is_less_sure_from_data_sheets_alone():
    assert band_width(None, experts=True) > 1.1 * band_width(None)
    assert spread(None, experts=True).own_sigma > spread(None).own_sigma


def test_software_unheard_of_is_less_sure_of_its_data_sheets_most_before_hopper():
    for lean, wider in ((False, 1.3), (True, 1.05)):
        unknown, known = (
            band_width(None, unknown_software=is_unknown, lean_kernels=lean)
            for is_unknown in (True, False)
        )
        assert np.log(unknown) > wider * np.log(known)
    # the layouts of a size are compared nearly as surely: most of it they share
    assert spread(None, unknown_software=True).own_sigma < 1.2 * spread(None).own_sigma


def test_a_layout_that_waits_for_its_tensor_parallel_ranks_is_less_sure(calibrated):
    stack = only(calibrated)
    assert spread(stack, roughness=3.0).own_sigma == pytest.approx(3 * spread(stack).own_sigma)


def test_a_layout_beyond_all_calibrated_ones_is_less_sure(sweep):
    stack = only(fitted_on(of_tp(sweep, 1)))
    points = points_of(Columns(sweep, "sweep"))
    (group,) = points.groups
    beyond = distance_beyond(group.features, stack.seen)
    tp = group.features.tp
    assert beyond[tp == 1].max() == 0
    assert beyond[tp == 2] == pytest.approx(1)  # doublings
    assert beyond[tp == 4] == pytest.approx(2)
    near, far = (spread(stack, beyond=np.array([d])) for d in (0.0, 2.0))
    assert far.own_sigma > near.own_sigma
    assert far.own_sigma == pytest.approx(stack.bands["layout"].own)  # of other layouts left out


def test_intervals_hold_layouts_that_no_calibrated_row_is_like(sweep):
    """The fit on rows without tensor parallelism says nothing of what its collectives cost."""
    table = sweep.filter(pa.compute.field("tp") <= 2)
    found = trial(table, "sweep", calibrate_where="tp = 1").overall
    assert found.coverage_80 is not None
    assert found.coverage_80 >= 0.6


def of_tp(table, tp):
    return table.filter(pa.array([value == tp for value in table["tp"].to_pylist()]))


def needing(shares, ran, kernel="flash2"):
    """Rows of one stack whose data-sheet need is about these shares of the capacity."""
    rows = [
        {"framework": "plain", "tp": 1, "dp": 8, "zero_stage": 1, "micro_batch_size": 1,
         "gradient_accumulation_steps": 4, "attention": kernel, "precision": "bf16",
         "num_layers": layers, "model": f"of {layers}", "outcome": "ok" if fine else "oom",
         "step_time_s": 1.0 if fine else None}
        for layers, fine in zip(shares, ran, strict=True)
    ]  # fmt: skip
    columns = Columns(table_of(*rows), "rows")
    (group,) = points_of(columns).groups
    return group, observed_of(columns).take(group.rows)


def test_outcomes_say_from_which_need_a_layout_fits():
    layers = list(range(4, 44))
    group, seen = needing(layers, [count < 24 for count in layers])
    odds = fit_outcomes(group, seen, group.start)
    assert 0 < odds["sigma"] < 0.1
    assert odds["math"] == pytest.approx(0, abs=1e-4)  # no row runs it: the prior
    few, rest = needing(layers[:12], [True] * 6 + [False] * 6)
    assert fit_outcomes(few, rest, few.start) == {}


def test_a_false_fit_weighs_more_where_odds_are_learned(calibrated, points):
    group = points({"framework": "NeMo"}).groups[0]
    stack = dataclasses.replace(
        only(calibrated),
        cluster=group.cluster_name,
        outcomes={"sigma": 0.1, "offset": -0.02, "math": 0.0},
    )
    counted = np.array([False])
    sigma, offset, fit_threshold = fit_odds(group, stack, counted)
    assert (sigma[0], offset[0], fit_threshold) == (0.1, -0.02, LEARNED_ODDS)
    elsewhere = dataclasses.replace(stack, cluster="another")
    assert fit_odds(group, elsewhere, counted)[2] == EVEN_ODDS
    sheet = fit_odds(group, None, counted)[0]
    own = points({"framework": "scaling"}).groups[0]
    assert fit_odds(own, None, ~counted)[0] < sheet


@pytest.mark.parametrize(
    ("part", "value", "sentence"),
    [
        ("outcomes", {"sigma": 0.0, "offset": 0.0}, "outcomes has no finite offset, or no sigma"),
        ("seen", {"tp": [0.0]}, "seen.tp is no range of two numbers"),
    ],
)
def test_odds_and_ranges_that_are_none_are_refused(tmp_path, calibrated, part, value, sentence):
    record = json.loads(calibrated.to_json())
    for stack in record["stacks"].values():
        stack[part] = {**stack[part], **value}
    (tmp_path / "c.json").write_text(json.dumps(record))
    with pytest.raises(InputError, match=sentence):
        read_calibration(tmp_path / "c.json")


def held_back(own, shared, *, settings=40, rows=50, seed=1):
    draw = np.random.default_rng(seed)
    setting = np.repeat(np.arange(settings), rows)
    off = draw.normal(0, shared, settings)[setting] + draw.normal(0, own, settings * rows)
    return HeldOut(
        log_residual=off,
        roughness=np.ones(len(off)),
        distance_beyond=np.zeros(len(off)),
        setting=setting.astype(object),
    )


@pytest.mark.parametrize(("own", "shared"), [(0.1, 0.0), (0.03, 0.2), (0.2, 0.05)])
def test_the_error_of_a_layout_is_told_from_what_its_size_shares(own, shared):
    band = band_of("model", [held_back(own, shared, seed=seed) for seed in range(4)])
    assert band.own == pytest.approx(own, rel=0.1)
    # a fold's worth of what published tables show, 0.05, beside four folds
    assert band.shared == pytest.approx((4 * shared + 0.05) / 5, rel=0.15, abs=0.005)


@pytest.mark.parametrize(("rows", "own"), [(10, 0.2), (2000, 0.2), (10, 0.01), (2000, 0.01)])
def test_few_rows_move_a_layouts_own_error_a_little_many_all_of_the_way(rows, own):
    band = band_of("interpolation", [held_back(own, 0.0, settings=1, rows=rows)])
    assert band.own is not None
    way = (band.own - 0.055) / (own - 0.055)
    assert (0.9 < way < 1.1) if rows == 2000 else (0.1 < way < 0.6)


def test_a_band_holds_eight_of_ten_residuals():
    residuals = held_back(0.1, 0.0, settings=1, rows=5000)
    band = band_of("interpolation", [residuals])
    inside = (residuals.log_residual > band.low) & (residuals.log_residual < band.high)
    assert inside.mean() == pytest.approx(0.8, abs=0.02)
    assert band.rows == 5000


def test_a_calibration_of_before_own_errors_were_told_apart_is_still_read(tmp_path, calibrated):
    record = json.loads(calibrated.to_json())
    for stack in record["stacks"].values():
        for band in stack["bands"].values():
            del band["own"], band["shared"]
    (tmp_path / "c.json").write_text(json.dumps(record))
    old = spread(only(read_calibration(tmp_path / "c.json")))
    assert 0 < old.own_sigma < np.log(old.high)
