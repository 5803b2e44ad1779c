"""Software of which nothing is known; known one in any spelling."""

import numpy as np
import pytest

from scaling.cluster.hardware import GPUS
from scaling.predict.cost.model import predict
from scaling.predict.read.stacks import STACKS, stack_of

H100 = {"cluster": "h100-80gb-dgx", "tp": 4, "pp": 2, "dp": 8, "micro_batch_size": 1}
H100["gradient_accumulation_steps"] = 32


def test_unknown_software_is_slower_than_what_nvidia_tuned(points):
    names = ("NeMo 25.02", "trainer of tomorrow", "")
    tuned, unknown, unnamed = predict(
        points(*({**H100, "framework": name, "source": "a blog"} for name in names))
    ).step_time_s
    assert unknown == unnamed
    assert tuned < unknown < 2 * tuned


def test_intervals_of_unknown_software_are_wider_by_what_all_layouts_share(points):
    names = ("NeMo 25.02", "trainer of tomorrow")
    found = predict(points(*({**H100, "framework": name} for name in names)))
    known, unknown = np.log(found.high / found.low)
    assert unknown > 1.2 * known
    assert found.common_sigma[1] > 1.5 * found.common_sigma[0]


def test_unknown_software_may_fit_a_little_above_the_capacity(points):
    layouts = [
        {**H100, "framework": name, "tp": 1, "micro_batch_size": micro, "dp": 32}
        | {"activation_checkpointing": "none"}
        for name in ("NeMo 25.02", "trainer of tomorrow")
        for micro in range(1, 40)
    ]
    found = predict(points(*layouts))
    used = (found.need_bytes / found.capacity_bytes).reshape(2, -1)
    assert (found.fits.reshape(2, -1) == (used <= 1)).all()
    above = (used > 1.1) & (used < 1.4)
    chance = found.fits_chance.reshape(2, -1)
    assert chance[1][above[1]].min() > 0.02


@pytest.mark.parametrize(
    ("spelled", "name"),
    [
        ("NVIDIA NeMo 2.0", "Megatron-Core"),
        ("nemo-framework v25.04", "Megatron-Core"),
        ("megatron_core r0.12", "Megatron-Core"),
        ("ROCm Megatron-LM", "Megatron-Core"),
        ("NeMo Automodel 0.2", "Automodel"),
        ("AI-Hypercomputer/maxtext", ""),
        ("TorchTitan nightly", "torchtitan"),
        ("NeMo (MLPerf v5.1)", "Megatron-Core"),
        ("Megatron-Bridge", "Megatron-Core"),
        ("scaling torch nights", ""),
        ("nemotron trainer", ""),
    ],
)
def test_software_is_known_by_the_words_in_its_name(spelled, name):
    assert stack_of(spelled, GPUS["h100-80gb"]).name == name
    assert len({(s.name, s.generations) for s in STACKS}) == len(STACKS)
