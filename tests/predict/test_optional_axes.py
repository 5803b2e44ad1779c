"""Fits of random mixtures of the optional axes, and of the first rows of a real GPU."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from scaling.importing.reader import read_rows
from scaling.layout.engines import ENGINES, engine_refusals
from scaling.layout.layout import Layout, refusals
from scaling.predict.cost.memory import memory_of
from scaling.predict.cost.model import predict
from scaling.predict.cost.step import step_of
from scaling.predict.fit.calibrate import calibrate
from scaling.predict.read.observed import Observed, observed_of
from scaling.predict.read.parameters import PARAMETERS
from scaling.predict.read.points import points_of, points_of_layouts
from tests.h100 import h100_study
from tests.shipped import CLUSTERS, MODELS

pytestmark = pytest.mark.slow

SHAPE = MODELS["mixtral_8x7b"]
SCHEDULES = [("1f1b", 1), ("interleaved", 2), ("zbv", 1), ("dualpipev", 1)]


@st.composite
def mixtures(draw):
    """Layouts of 16 GPUs that an engine accepts."""

    def one():
        schedule, virtual = draw(st.sampled_from(SCHEDULES))
        tp, pp = draw(st.sampled_from([1, 2])), draw(st.sampled_from([1, 2, 4]))
        return Layout(
            tp=tp, pp=pp, dp=16 // tp // pp, ep=draw(st.sampled_from([1, 2])),
            zero_stage=draw(st.sampled_from([0, 1, 2, 3])),
            pipeline_schedule=schedule if pp > 1 else "1f1b",
            virtual_stages=virtual if pp > 1 else 1,
            optimizer_offload=draw(st.sampled_from(["none", "cpu"])),
            optimizer_precision=draw(st.sampled_from(["fp32", "bf16"])),
            micro_batch_size=draw(st.sampled_from([1, 2])), gradient_accumulation_steps=8,
            activation_checkpointing=draw(st.sampled_from(["none", "selective", "full"])),
            attention=draw(st.sampled_from(["math", "flash2"])),
            fused_cross_entropy=draw(st.booleans()), compile=draw(st.booleans()),
            precision=draw(st.sampled_from(["fp32", "bf16", "fp8"])),
            engine=draw(st.sampled_from(sorted(ENGINES))), seq_length=2048,
        )  # fmt: skip

    drawn = [one() for _ in range(40)]
    kept = [
        layout
        for layout in drawn
        if not [*refusals(SHAPE, layout), *engine_refusals(SHAPE, layout)]
    ]
    assume(len(kept) > 3)
    return kept


def mixed_points(layouts):
    n = len(layouts)
    return points_of_layouts(
        layouts, [SHAPE] * n, CLUSTERS, models=["mixtral_8x7b"] * n, clusters=["h100-80gb-dgx"] * n
    )


@settings(max_examples=20)
@given(mixtures(), st.integers(0, 2**32 - 1))
def test_a_value_for_each_row_gives_what_one_value_for_all_gives(layouts, seed):
    random = np.random.default_rng(seed)
    for group in mixed_points(layouts).groups:
        n = len(group.features)
        varied = {
            name: q.low + (q.high - q.low) * random.random() for name, q in PARAMETERS.items()
        }
        sets = [group.start, {**group.start, **varied}]
        tiled = group.features.take(np.tile(np.arange(n), 2))
        arrays = {name: np.repeat([p[name] for p in sets], n) for name in group.start}
        together = memory_of(group, tiled, arrays)
        alone = [memory_of(group, group.features, p) for p in sets]
        assert np.array_equal(together.total, np.concatenate([one.total for one in alone]))
        used = together.total / group.capacity_bytes
        steps = [
            step_of(group, group.features, p, one.total / group.capacity_bytes).total
            for p, one in zip(sets, alone, strict=True)
        ]
        assert step_of(group, tiled, arrays, used).total == pytest.approx(np.concatenate(steps))


@settings(max_examples=20)
@given(mixtures(), st.integers(0, 2**32 - 1))
def test_a_mixture_of_optional_axes_is_fitted_and_predicted(layouts, seed):
    random = np.random.default_rng(seed)
    points = mixed_points(layouts)
    truth = predict(points)
    failed = random.random(len(points)) < 0.2
    noise = np.exp(random.normal(0, 0.05, len(points)))
    observed = Observed(
        step_time_s=np.where(failed, np.nan, truth.step_time_s * noise),
        peak_memory_bytes=np.where(failed, np.nan, truth.memory_bytes),
        ran=~failed,
        out_of_memory=failed,
        ambiguous=np.zeros(len(points), dtype=bool),
    )
    found = predict(points, calibrate(points, observed, source="mixture"))
    assert np.isfinite(found.step_time_s).all()
    assert np.isfinite(found.need_bytes).all()


def test_rows_of_one_gpu_are_calibrated_and_predicted_within_their_error(tmp_path):
    folder = h100_study(tmp_path)
    columns = read_rows(folder / "rows")
    points = points_of(columns, models=MODELS, clusters=CLUSTERS)
    observed = observed_of(columns)
    found = predict(points, calibrate(points, observed, source="rows"))
    inside = (found.low <= observed.step_time_s) & (observed.step_time_s <= found.high)
    assert inside.sum() >= 11  # ZeRO-3 and the offloaded optimizer are bound by the host
    assert found.memory_bytes == pytest.approx(observed.peak_memory_bytes, rel=0.2)
