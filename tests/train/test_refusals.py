"""The list of refusals is what DeepSpeed refuses: each is run to compare its message."""

import dataclasses
from typing import Any

import pytest
import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from scaling.layout.axes import Attention
from scaling.layout.engines import ENGINES, engine_refusals
from scaling.layout.layout import Layout, refusals
from scaling.layout.shapes import ModelShape
from scaling.study.point import Point
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


@pytest.mark.ranks
@pytest.mark.parametrize("zero_stage", [2, 3])
def test_deepspeed_refuses_sharded_pipelines_in_the_words_we_quote(
    attempt: Attempt, zero_stage: int
) -> None:
    point = tiny_point(pp=2, zero_stage=zero_stage, gradient_accumulation_steps=2)
    (ours,) = engine_refusals(point.shape, point.layout)
    quoted = ours.split(": ", 1)[1].removesuffix(" (DeepSpeed)")
    failures = attempt(point)
    assert len(failures) == 2
    for failure in failures.values():
        assert failure.outcome == "error"
        assert quoted in failure.message


@pytest.mark.ranks
def test_deepspeed_wants_as_many_micro_batches_for_dualpipev_as_we_do(attempt: Attempt) -> None:
    short = tiny_point(pp=2, pipeline_schedule="dualpipev", gradient_accumulation_steps=2)
    (ours,) = refusals(short.shape, short.layout)
    assert "at least 2 x pp=4 micro-batches, not gradient_accumulation_steps=2" in ours
    for failure in attempt(short).values():
        assert "DualPipeV needs gradient_accumulation_steps >= 2 * 2, got 2" in failure.message


def test_experts_of_odd_widths_are_refused_where_torch_cannot_group_them() -> None:
    experts = dataclasses.replace(
        TINY, num_experts=4, experts_per_token=2, expert_ffn_hidden_size=24
    )
    halved = Layout(tp=2, precision="bf16", seq_length=32)
    (reason,) = engine_refusals(experts, halved)
    assert reason.startswith("expert_ffn_hidden_size / tp=2 = 12 is no multiple of 8")
    # torch's own words on what is refused
    ends, rows = torch.tensor([8], dtype=torch.int32), torch.zeros(8, 12, dtype=torch.bfloat16)
    with pytest.raises(RuntimeError, match="multiple of 16 bytes"):
        functional.grouped_mm(rows, torch.zeros(1, 32, 12).bfloat16().mT, offs=ends)
    assert not list(engine_refusals(experts, dataclasses.replace(halved, precision="fp32")))
    assert not list(engine_refusals(experts, dataclasses.replace(halved, tp=1)))


ODD = dataclasses.replace(TINY, hidden_size=95)


@pytest.mark.ranks
def test_stages_whose_messages_have_no_equal_parts_are_refused(attempt: Attempt) -> None:
    def asked(**layout: Any) -> Point:
        return tiny_point(
            shape=ODD, pp=2, tp=2, gradient_accumulation_steps=8, seq_length=33, **layout
        )

    (said,) = engine_refusals(ODD, asked().layout)
    assert said.endswith(
        "micro_batch_size=1 x seq_length=33 x hidden_size=95 = 3135 elements have no equal parts "
        "(DeepSpeed)"
    )
    assert len(attempt(asked())) == 4
    assert not list(engine_refusals(ODD, asked(micro_batch_size=2).layout))
    assert not list(engine_refusals(TINY, asked().layout))


def torch_says(shape: ModelShape = TINY, **layout: Any) -> list[str]:
    asked = Layout(seq_length=32, engine="torch", **layout)
    return [*refusals(shape, asked), *engine_refusals(shape, asked)]


SPLIT = {"pp": 2, "gradient_accumulation_steps": 4}


@pytest.mark.parametrize(
    ("layout", "reason"),
    [
        ({**SPLIT, "zero_stage": 2}, "zero_stage=2 with pp=2: torch's pipelines reduce gradients"),
        (
            {**SPLIT, "zero_stage": 3, "pipeline_schedule": "zbv"},
            "zero_stage=3 with pipeline_schedule=zbv: FSDP2 has freed the weights",
        ),
        (
            {**SPLIT, "compile": True, "pipeline_schedule": "zero_bubble"},
            "compile with pipeline_schedule=zero_bubble",
        ),
        ({"pp": 2}, "torch's 1f1b needs as many micro-batches as stages"),
        ({"precision": "fp16"}, "precision=fp16 needs a loss that is scaled"),
        (
            {**SPLIT, "activation_checkpointing": "full", "pipeline_schedule": "zbv"},
            "torch would recompute a layer once for its inputs' gradients and once for each",
        ),
        ({**SPLIT, "fused_cross_entropy": True}, "which torch's pipeline keeps apart"),
        ({**SPLIT, "virtual_stages": 2}, "virtual_stages=2 with pipeline_schedule=1f1b"),
        (
            {**SPLIT, "virtual_stages": 2, "pipeline_schedule": "zbv"},
            "virtual_stages=2 with pipeline_schedule=zbv",
        ),
        ({**SPLIT, "pipeline_schedule": "interleaved"}, "with virtual_stages=1 is 1f1b"),
        (
            {**SPLIT, "pipeline_schedule": "interleaved", "virtual_stages": 3},
            "cuts the model into 3 x pp=6 stages, which cannot share num_layers=4 layers",
        ),
        (
            {
                "pp": 2,
                "gradient_accumulation_steps": 5,
                "pipeline_schedule": "interleaved",
                "virtual_stages": 2,
            },
            "gradient_accumulation_steps=5 cannot be divided evenly",
        ),
        ({"pipeline_schedule": "zbv"}, "pipeline_schedule=zbv needs pp > 1"),
    ],
    ids=str,
)
def test_the_engine_of_torch_says_what_it_cannot_do(layout: dict[str, Any], reason: str) -> None:
    (refused,) = torch_says(**layout)
    assert reason in refused


@pytest.mark.parametrize("engine", ENGINES)
def test_a_ring_needs_two_runs_of_tokens_and_a_flash_kernel(
    engine: str,
) -> None:
    (wide,) = refusals(TINY, Layout(seq_length=32, cp=8))
    assert "num_kv_heads=4 over tp=1 is not divisible by cp=8" in wide
    ring = Layout(seq_length=32, cp=8, cp_style="ring", engine=engine)
    assert not list(refusals(TINY, ring))
    assert not list(engine_refusals(TINY, ring))
    (alone,) = refusals(TINY, dataclasses.replace(ring, cp=1))
    assert alone.endswith("needs cp > 1")
    (uneven,) = refusals(TINY, dataclasses.replace(ring, seq_length=24))
    assert "seq_length=24 is not divisible by 2 x cp=8" in uneven
    (plain,) = engine_refusals(TINY, dataclasses.replace(ring, attention="math"))
    assert plain.endswith("(attention=flash2), not by attention=math")
    (compiled,) = engine_refusals(TINY, dataclasses.replace(ring, compile=True))
    assert "eager code" in compiled


@pytest.mark.parametrize("engine", ENGINES)
def test_no_engine_trains_an_encoder_decoder_in_stages(engine: str) -> None:
    point = tiny_point(shape=TINY_T5, engine=engine, **SPLIT)
    (refused,) = engine_refusals(TINY_T5, point.layout)
    assert "stages send one stream, and a t5 has two" in refused


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("layout", "said"),
    [
        ({"pipeline_schedule": "zbv", "zero_stage": 3, "dp": 2}, "AssertionError"),
        (
            {
                "pipeline_schedule": "interleaved",
                "virtual_stages": 2,
                "gradient_accumulation_steps": 5,
            },
            "Interleaved 1F1B requires the number of microbatches to be a multiple",
        ),
        (
            {"pipeline_schedule": "dualpipev", "gradient_accumulation_steps": 2},
            "DualPipeV requires at least as many microbatches as stages, but got 2",
        ),
    ],
    ids=str,
)
def test_torch_refuses_what_we_say_it_does(
    attempt: Attempt, layout: dict[str, Any], said: str
) -> None:
    point = tiny_point(engine="torch", global_batch_size=20, **{**SPLIT, **layout})
    assert [*refusals(point.shape, point.layout), *engine_refusals(point.shape, point.layout)]
    skip_if_lacking(point)
    assert any(said in failure.message for failure in attempt(point).values())


@pytest.mark.parametrize("schedule", ["interleaved", "zero_bubble", "zbv"])
def test_deepspeed_has_two_schedules(schedule: str) -> None:
    asked = {**SPLIT, "pipeline_schedule": schedule}
    if schedule == "interleaved":
        asked["virtual_stages"] = 2
    layout = Layout(seq_length=32, **asked)  # type: ignore[arg-type]
    assert not list(refusals(TINY, layout))
    (said,) = engine_refusals(TINY, layout)
    assert said == f"pipeline_schedule={schedule}: DeepSpeed has 1f1b and dualpipev only"


def test_a_second_copy_is_of_zero_3_and_shared() -> None:
    def said(**layout: int) -> list[str]:
        return list(engine_refusals(TINY, Layout(seq_length=32, dp=4, **layout)))  # type: ignore[arg-type]

    assert said(zero_stage=3, zero_shard_size=2) == []
    assert said(zero_stage=3, zero_shard_size=4) == []
    (stage,) = said(zero_stage=2, zero_shard_size=2)
    assert "zero_stage=2: DeepSpeed keeps a second copy of ZeRO-3's parameters only" in stage
    (alone,) = said(zero_stage=3, zero_shard_size=1)
    assert alone.startswith("zero_shard_size=1 keeps all parameters on every rank")


def test_a_kernel_of_rms_norm_is_no_layer_norm() -> None:
    (said,) = engine_refusals(TINY_GPT, Layout(seq_length=32, fused_norm=True))
    assert said.startswith("fused_norm is a kernel of RMSNorm")


@pytest.mark.parametrize("attention", ["flash2", "flash3", "cudnn"])
def test_only_the_plain_attention_trains_a_position_bias(attention: Attention) -> None:
    (said,) = engine_refusals(TINY_T5, Layout(seq_length=32, attention=attention))
    assert said.startswith(f"attention={attention} gives no gradient to the position bias")
    assert not list(engine_refusals(TINY_T5, Layout(seq_length=32, attention="math")))


@pytest.mark.parametrize("attention", ["flash1", "fused_softmax"])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_label_of_published_rows_is_refused_by_every_engine(attention, engine) -> None:
    layout = Layout(seq_length=32, attention=attention, engine=engine)
    (said,) = engine_refusals(TINY, layout)
    assert said == f"attention={attention} is a label of published rows, which no engine runs"


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


def test_a_tied_encoder_decoder_is_refused() -> None:
    tied = dataclasses.replace(TINY_T5, tied_embeddings=True)
    (said,) = engine_refusals(tied, Layout(seq_length=32, attention="math"))
    assert said.endswith("tied_embeddings must be false")


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
