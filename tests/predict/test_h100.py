"""The first rows of a real GPU, predicted from its data sheet and from half of themselves."""

import dataclasses

import numpy as np
import pytest

from scaling.importing.reader import read_rows
from scaling.predict.cost.model import predict
from scaling.predict.fit.calibrate import calibrate
from scaling.predict.read import stacks
from scaling.predict.read.observed import observed_of
from scaling.predict.read.points import points_of
from tests.h100 import h100_study
from tests.shipped import CLUSTERS, MODELS

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def engines_of_then():
    """When these rows were measured the plain norm was a chain of operators.

    DeepSpeed's ZeRO-3 called 5,500 Python functions a layer and micro-batch, today 2,900.
    """
    with pytest.MonkeyPatch.context() as patch:
        then = {
            name: dataclasses.replace(stack, fused_norms=False)
            for name, stack in stacks.OWN_STACKS.items()
        }
        deepspeed = then[stacks.OWN_FRAMEWORK]
        then[stacks.OWN_FRAMEWORK] = dataclasses.replace(deepspeed, zero_3_hooks=5.5)
        patch.setattr(stacks, "OWN_STACKS", then)
        stacks._stack_of.cache_clear()
        yield
    stacks._stack_of.cache_clear()


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    return read_rows(h100_study(tmp_path_factory.mktemp("h100")) / "rows")


def points(table):
    return points_of(table, models=MODELS, clusters=CLUSTERS)


def errors(table, calibration=None):
    return predict(points(table), calibration).step_time_s / observed_of(table).step_time_s - 1


def test_steps_of_an_h100_are_predicted_from_its_data_sheet(rows):
    off = np.abs(errors(rows))
    assert off.mean() < 0.06
    assert off.max() < 0.15  # ZeRO-3's hooks and the optimizer on the host are among them
    found, seen = predict(points(rows)), observed_of(rows).step_time_s
    assert ((found.low < seen) & (seen < found.high)).all()


def test_zero3_under_deepspeed_was_bound_by_the_host(rows):
    zero3 = [stage == 3 for stage in rows.rows["zero_stage"].to_pylist()]
    deepspeed = [engine == "deepspeed" for engine in rows.rows["engine"].to_pylist()]
    assert predict(points(rows)).host_bound.tolist() == list(
        map(all, zip(zero3, deepspeed, strict=True))
    )


def test_h100_memory_peaks_are_predicted_within_a_twelfth(rows):
    found, seen = predict(points(rows)).memory_bytes, observed_of(rows).peak_memory_bytes
    off = np.abs(found / seen - 1)
    assert off.max() < 0.08
    assert off.mean() < 0.03
    assert off[np.array(rows.rows["compile"].to_pylist())].max() < 0.05


def test_half_of_the_rows_teach_the_other_half(rows):
    means = []
    for seed in range(3):
        learned = np.random.default_rng(seed).permutation(rows.rows.num_rows) % 2 == 0
        part = rows.filter(learned)
        fit = calibrate(points(part), observed_of(part), source="half")
        means.append(np.abs(errors(rows.filter(~learned), fit)).mean())
    assert np.mean(means) < 0.055
