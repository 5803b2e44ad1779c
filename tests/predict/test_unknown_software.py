"""Software of which nothing is known is what is usual on its GPUs; known one in any spelling."""

import pyarrow.compute as pc
import pytest

from benchmarks.held_out import unnamed
from scaling.cluster.hardware import GPUS
from scaling.predict.cost.model import predict
from scaling.predict.fit.trial import trial
from scaling.predict.read.stacks import stack_of
from scaling.published.table import published_table

H100 = {"cluster": "h100-80gb-dgx", "tp": 4, "pp": 2, "dp": 8, "micro_batch_size": 1}
H100["gradient_accumulation_steps"] = 32


def usual(gpu, framework="somebody's trainer 1.0", **facts):
    return stack_of(framework, GPUS[gpu], **facts)


def test_unknown_software_has_what_was_usual_in_its_gpus_time():
    for gpu in ("h100-80gb", "gb300-288gb", "mi300x-192gb"):
        assert usual(gpu).lean_kernels
        assert usual(gpu).sequence_parallel
        assert usual(gpu).zero_stage == 1
    for gpu in ("v100-32gb", "a100-80gb", "mi250x-gcd"):
        assert not usual(gpu).lean_kernels
        assert usual(gpu).gradient_bytes == 4


def test_unknown_software_on_h100_is_close_to_the_known_one(points):
    names = ("NeMo 25.02", "trainer of tomorrow", "")
    nemo, unknown, unnamed = predict(
        points(*({**H100, "framework": name, "source": "a blog"} for name in names))
    ).step_time_s
    assert unknown == unnamed
    assert unknown == pytest.approx(nemo, rel=0.12)


def test_a_table_that_says_its_norms_are_not_fused_is_of_older_software(points):
    (group,) = points({**H100, "framework": "x", "fused_norm": False}).groups
    assert not group.stack.lean_kernels
    # whoever trains in 8 bits has Transformer Engine's kernels
    (group,) = points({**H100, "framework": "x", "fused_norm": False, "precision": "fp8"}).groups
    assert group.stack.lean_kernels
    mixed = [{**H100, "framework": "x", "fused_norm": fused} for fused in (True, False, None)]
    (group,) = points(*mixed).groups
    assert not group.stack.lean_kernels  # one table is of one software


@pytest.mark.parametrize(
    ("spelled", "name"),
    [
        ("NVIDIA NeMo 2.0", "NeMo"),
        ("nemo-framework v25.04", "NeMo"),
        ("megatron_core r0.12", "Megatron-Core"),
        ("MegatronCore", "Megatron-Core"),
        ("ROCm Megatron-LM", "Megatron-Core"),
        ("Megatron-LM (mcore)", "Megatron-Core"),
        ("NeMo Automodel 0.2", "Automodel"),
        ("AI-Hypercomputer/maxtext", "JAX"),
        ("TorchTitan nightly", "torchtitan"),
        ("scaling torch nights", ""),
        ("nemotron trainer", ""),
    ],
)
def test_software_is_known_by_the_words_in_its_name(spelled, name):
    assert usual("h100-80gb", spelled).name == name


def test_a_release_in_the_name_counts_as_one_in_its_column(points):
    row = {"cluster": "gb200-186gb", "ep": 8, "dp": 8, "num_experts": 64, "experts_per_token": 2}
    row |= {"expert_ffn_hidden_size": 1024}
    in_name, in_column, before = (
        predict(points({**row, "framework": name, "release": release})).step_time_s[0]
        for name, release in (
            ("Megatron-Bridge 26.08", None),
            ("Megatron-Bridge", "26.08 NeMo Container"),
            ("Megatron-Bridge 26.04.01", None),
        )
    )
    assert in_name == in_column < before


def test_published_rows_are_close_to_predicted_without_a_word_of_their_software():
    table = published_table()
    dense = table.filter(pc.equal(pc.fill_null(table["num_experts"], 0), 0))
    scores = trial(unnamed(dense), "t").overall
    assert scores.step_time["rows"] > 190
    assert scores.step_time["mape"] < 0.06
    assert scores.memory["false_oom_rate"] < 0.05


def test_a_little_above_the_capacity_unknown_software_may_fit_and_known_may_not(points):
    layouts = [
        {**H100, "framework": name, "tp": 1, "micro_batch_size": micro, "dp": 32}
        for name in ("NeMo 25.02", "trainer of tomorrow")
        for micro in range(1, 40)
    ]
    found = predict(points(*layouts))
    used = (found.need_bytes / found.capacity_bytes).reshape(2, -1)
    fits = found.fits.reshape(2, -1)
    assert (fits[0] == (used[0] <= 1)).all()
    assert (fits[1] == (used[1] <= 1.11)).all()
    assert (fits[1] & (used[1] > 1)).any()
