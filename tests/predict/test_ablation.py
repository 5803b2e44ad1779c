"""Each mechanism of benchmarks/ablate.py changes predictions, and its worth is documented."""

from contextlib import ExitStack
from unittest import mock

import pytest

from benchmarks import ablate, accuracy
from scaling.predict.cost.model import predict

EFA = {
    "cluster": "h100-80gb-efa",
    "framework": "nanotron",
    "pp": 4,
    "gradient_accumulation_steps": 16,
}
ROWS = (
    {**EFA, "dp": 16, "zero_stage": 0},
    {**EFA, "dp": 4, "tp": 16, "zero_stage": 1, "micro_batch_size": 8, "seq_length": 8192},
    {"attention": "flash1", "fused_norm": True, "dp": 8, "zero_stage": 1},
    {"attention": "math", "tp": 4, "pp": 2},
    {"zero_stage": 3, "dp": 64},
    {
        "framework": "NeMo", "cluster": "h100-80gb-dgx", "precision": "fp8", "cp": 2, "tp": 4,
        "pp": 4, "cp_style": "ring", "virtual_stages": 2, "num_layers": 30, "seq_length": 32768,
        "gradient_accumulation_steps": 8,
    },
    {
        "framework": "Megatron-Core MoE", "cluster": "h100-80gb-dgx", "dp": 16, "ep": 16,
        "num_experts": 32, "experts_per_token": 8, "expert_ffn_hidden_size": 1024,
    },
)  # fmt: skip


@pytest.mark.parametrize("name", ablate.MECHANISMS)
def test_turning_a_mechanism_off_changes_a_prediction(points, name):
    asked, without = points(*ROWS), ablate.MECHANISMS[name]
    before = predict(asked).step_time_s
    with ExitStack() as patched:
        for place in without.code:
            patched.enter_context(mock.patch.object(*place))
        after = predict(without.of(asked)).step_time_s
    assert abs(after / before - 1).max() > 1e-6


def test_the_document_has_a_line_for_each():
    written = ablate.TABLES.part_of(accuracy.DOCUMENT.read_text(encoding="utf-8")).splitlines()[2:]
    assert [line.split("|")[1].strip() for line in written] == list(ablate.MECHANISMS)
