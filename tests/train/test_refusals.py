"""The list of refusals is what DeepSpeed refuses: each is run to compare its message."""

import dataclasses
from typing import Any

import pytest
import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from scaling.layout.engines import ENGINES, engine_refusals
from scaling.layout.layout import Layout, refusals
from scaling.layout.shapes import ModelShape
from scaling.train.engines.torch import refusals as of_torch
from scaling.train.failures import KernelUnavailable
from scaling.train.kernels.availability import require_kernels
from tests.points import TINY, TINY_GPT, TINY_T5, tiny_point
from tests.train.conftest import Attempt, skip_if_lacking
from tests.train.covering import product

AXES = {
    "tp": (1, 2),
    "pp": (1, 2),
    "cp": (1, 2),
    "dp": (1, 2),
    "zero_stage": (0, 1, 2, 3),
    "sequence_parallel": (False, True),
    "activation_checkpointing": ("none", "selective", "full"),
    "attention": ("math", "flash2"),
    "precision": ("fp32", "bf16"),
}


def test_deepspeed_refuses_only_sharded_pipelines_of_a_decoder() -> None:
    """That what is not refused runs is what test_parity trains."""
    for axes in product(AXES):
        layout = Layout(seq_length=32, **axes)
        if not list(refusals(TINY, layout)):
            refused = layout.pp > 1 and layout.zero_stage > 1
            assert bool(list(engine_refusals(TINY, layout))) == refused, layout


SPLIT = {"pp": 2, "gradient_accumulation_steps": 4}
CHUNKS = {**SPLIT, "pipeline_schedule": "interleaved"}
RING = {"cp": 8, "cp_style": "ring"}
EXPERTS = dataclasses.replace(TINY, num_experts=4, experts_per_token=2, expert_ffn_hidden_size=24)
ODD = dataclasses.replace(TINY, hidden_size=95)  # which two tp ranks cannot halve
TIED_T5 = dataclasses.replace(TINY_T5, tied_embeddings=True)
# Layouts, and the words with which an engine of ours refuses them; None: it runs.
BOTH: list[tuple[ModelShape, dict[str, Any], str | None]] = [
    (TINY, RING, None),
    (TINY, {"cp": 8}, "num_kv_heads=4 over tp=1 is not divisible by cp=8"),
    (TINY, {**RING, "cp": 1}, "needs cp > 1"),
    (TINY, {**RING, "seq_length": 24}, "seq_length=24 is not divisible by 2 x cp=8"),
    (TINY, {**RING, "attention": "math"}, "(attention=flash2), not by attention=math"),
    (TINY, {**RING, "compile": True}, "eager code"),
    (TINY_T5, {**SPLIT, "attention": "math"}, "stages send one stream, and a t5 has two"),
    (TINY_T5, {"attention": "math"}, None),
    (TIED_T5, {"attention": "math"}, "tied_embeddings must be false"),
    *(
        (TINY_T5, {"attention": name}, f"attention={name} gives no gradient to the position bias")
        for name in ("flash2", "flash3", "cudnn")
    ),
    *(
        (TINY, {"attention": name}, f"attention={name} is a label of published rows")
        for name in ("flash1", "fused_softmax")
    ),
    (TINY_GPT, {"fused_norm": True}, "fused_norm is a kernel of RMSNorm"),
    (EXPERTS, {"tp": 2, "precision": "bf16"}, "expert_ffn_hidden_size / tp=2 = 12 is no multiple"),
    (EXPERTS, {"tp": 2, "precision": "fp32"}, None),
    (EXPERTS, {"precision": "bf16"}, None),
    (TINY, {**SPLIT, "virtual_stages": 2}, "virtual_stages=2 with pipeline_schedule=1f1b"),
    (TINY, {"pp": 2, "pipeline_schedule": "dualpipev", "gradient_accumulation_steps": 2},
     "at least 2 x pp=4 micro-batches, not gradient_accumulation_steps=2"),
]  # fmt: skip
OF_TORCH: list[tuple[ModelShape, dict[str, Any], str | None]] = [
    (TINY, {**SPLIT, "zero_stage": 2}, "zero_stage=2 with pp=2: torch's pipelines reduce"),
    (TINY, {**SPLIT, "zero_stage": 3, "pipeline_schedule": "zbv"},
     "zero_stage=3 with pipeline_schedule=zbv: FSDP2 has freed the weights"),
    (TINY, {**SPLIT, "compile": True, "pipeline_schedule": "zero_bubble"},
     "compile with pipeline_schedule=zero_bubble"),
    (TINY, CHUNKS, "with virtual_stages=1 is 1f1b"),
    (TINY, {"pp": 2}, "torch's 1f1b needs as many micro-batches as stages"),
    (TINY, {"precision": "fp16"}, "precision=fp16 needs a loss that is scaled"),
    (TINY, {**SPLIT, "activation_checkpointing": "full", "pipeline_schedule": "zbv"},
     "torch would recompute a layer once for its inputs' gradients and once for each"),
    (TINY, {**SPLIT, "fused_cross_entropy": True}, "which torch's pipeline keeps apart"),
    (TINY, {**SPLIT, "virtual_stages": 2, "pipeline_schedule": "zbv"},
     "virtual_stages=2 with pipeline_schedule=zbv"),
    (TINY, {**CHUNKS, "virtual_stages": 3},
     "cuts the model into 3 x pp=6 stages, which cannot share num_layers=4 layers"),
    (TINY, {**CHUNKS, "virtual_stages": 2, "gradient_accumulation_steps": 5},
     "gradient_accumulation_steps=5 cannot be divided evenly"),
    (TINY, {"pipeline_schedule": "zbv"}, "pipeline_schedule=zbv needs pp > 1"),
]  # fmt: skip
HALVED = {"pp": 2, "tp": 2, "gradient_accumulation_steps": 8, "seq_length": 33}
OF_DEEPSPEED: list[tuple[ModelShape, dict[str, Any], str | None]] = [
    *(
        (TINY, {**SPLIT, "pipeline_schedule": name, "virtual_stages": chunks},
         f"pipeline_schedule={name}: DeepSpeed has 1f1b and dualpipev only")
        for name, chunks in (("interleaved", 2), ("zero_bubble", 1), ("zbv", 1))
    ),
    (TINY, {"dp": 4, "zero_stage": 3, "zero_shard_size": 2}, None),
    (TINY, {"dp": 4, "zero_stage": 3, "zero_shard_size": 4}, None),
    (TINY, {"dp": 4, "zero_stage": 2, "zero_shard_size": 2},
     "zero_stage=2: DeepSpeed keeps a second copy of ZeRO-3's parameters only"),
    (TINY, {"dp": 4, "zero_stage": 3, "zero_shard_size": 1},
     "zero_shard_size=1 keeps all parameters on every rank"),
    (ODD, HALVED, "micro_batch_size=1 x seq_length=33 x hidden_size=95 = 3135 elements have no"),
    (ODD, {**HALVED, "micro_batch_size": 2}, None),
    (TINY, HALVED, None),
]  # fmt: skip


def case_id(value: object) -> str:
    return value.family if isinstance(value, ModelShape) else str(value)


CASES = [
    *((engine, *case) for engine in ENGINES for case in BOTH),
    *(("torch", *case) for case in OF_TORCH),
    *(("deepspeed", *case) for case in OF_DEEPSPEED),
]


@pytest.mark.parametrize(("engine", "shape", "layout", "reason"), CASES, ids=case_id)
def test_an_engine_says_what_it_cannot_do(
    engine: str, shape: ModelShape, layout: dict[str, Any], reason: str | None
) -> None:
    asked = Layout(**{"seq_length": 32, "engine": engine, **layout})
    said = [*refusals(shape, asked), *engine_refusals(shape, asked)]
    assert len(said) == (reason is not None), said
    assert reason is None or reason in said[0]


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("layout", "said"),
    [
        *(({"pp": 2, "zero_stage": stage, "gradient_accumulation_steps": 2},
           "ZeRO-2 and ZeRO-3 are incompatible with pipeline parallelism") for stage in (2, 3)),
        ({"pp": 2, "pipeline_schedule": "dualpipev", "gradient_accumulation_steps": 2},
         "DualPipeV needs gradient_accumulation_steps >= 2 * 2, got 2"),
        ({**HALVED, "shape": ODD}, ""),
        ({"engine": "torch", **SPLIT, "pipeline_schedule": "zbv", "zero_stage": 3, "dp": 2},
         "AssertionError"),
        ({"engine": "torch", **CHUNKS, "virtual_stages": 2, "gradient_accumulation_steps": 5,
          "global_batch_size": 20},
         "Interleaved 1F1B requires the number of microbatches to be a multiple"),
        ({"engine": "torch", **SPLIT, "pipeline_schedule": "dualpipev",
          "gradient_accumulation_steps": 2},
         "DualPipeV requires at least as many microbatches as stages, but got 2"),
    ],
    ids=str,
)  # fmt: skip
def test_an_engine_refuses_what_we_say_it_does(
    attempt: Attempt, layout: dict[str, Any], said: str
) -> None:
    point = tiny_point(**layout)
    assert [*refusals(point.shape, point.layout), *engine_refusals(point.shape, point.layout)]
    skip_if_lacking(point)
    failures = attempt(point).values()
    assert {failure.outcome for failure in failures} == {"error"}
    assert any(said in failure.message for failure in failures)


def test_torch_groups_no_experts_of_odd_widths() -> None:
    ends, rows = torch.tensor([8], dtype=torch.int32), torch.zeros(8, 12, dtype=torch.bfloat16)
    with pytest.raises(RuntimeError, match="multiple of 16 bytes"):
        functional.grouped_mm(rows, torch.zeros(1, 32, 12).bfloat16().mT, offs=ends)


def test_torch_refuses_a_bias_that_learns_to_its_flash_kernel() -> None:
    query = torch.zeros(1, 2, 8, 8, requires_grad=True)
    fixed, learned = torch.zeros(1, 2, 8, 8), torch.zeros(1, 2, 8, 8, requires_grad=True)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        functional.scaled_dot_product_attention(query, query, query, attn_mask=fixed)
        with (
            pytest.warns(UserWarning, match="Flash attention kernel not used"),
            pytest.raises(RuntimeError, match="No available kernel"),
        ):
            functional.scaled_dot_product_attention(query, query, query, attn_mask=learned)


@pytest.mark.parametrize("schedule", ["zero_bubble", "zbv", "dualpipev"])
def test_a_torch_that_splits_a_backward_wrongly_is_asked_for_none(
    monkeypatch: pytest.MonkeyPatch, schedule: str
) -> None:
    """The place that asks for kernels: before the ranks meet."""

    def require(schedule: str, installed: str) -> None:
        monkeypatch.setattr(of_torch, "version", lambda _: installed)
        point = tiny_point(engine="torch", pp=2, pipeline_schedule=schedule)
        require_kernels(TINY, point.layout, torch.device("cpu"))

    require(schedule, "2.13.0+cu130")
    require("1f1b", "2.11.0+cu130")
    with pytest.raises(
        KernelUnavailable,
        match=rf"pipeline_schedule={schedule} needs torch >= 2.13, this is 2.9.1",
    ):
        require(schedule, "2.9.1")
