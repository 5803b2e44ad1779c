"""Matrix products in 8 bits: near those of bf16, in every layout, under both engines."""

import dataclasses
import functools
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

from scaling.layout.axes import Fp8Scaling
from scaling.layout.engines import ENGINES, engine_refusals
from scaling.layout.layout import refusals
from scaling.layout.shapes import ModelShape
from scaling.study.point import Point
from scaling.train.failures import KernelUnavailable
from scaling.train.kernels import fp8
from scaling.train.kernels.fp8 import fp8_linear, require_fp8
from tests.points import TINY, TINY_GPT, tiny_point
from tests.train.conftest import Learn, lacking
from tests.train.reference import Curve, reference_curve

SCALINGS: tuple[Fp8Scaling, ...] = ("tensor", "row")
STEPS = 3  # of ranks
BAND = 0.08  # of a loss that begins at ln(256) = 5.5: one and a half per cent


_LACKING = lacking(tiny_point(precision="fp8"))
multiplies = pytest.mark.skipif(_LACKING is not None, reason=str(_LACKING))


def drawn(*sizes: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*sizes, generator=generator).bfloat16().requires_grad_()


def off(one: torch.Tensor | None, other: torch.Tensor | None) -> float:
    assert one is not None
    assert other is not None
    return ((one.float() - other.float()).norm() / other.float().norm()).item()


@multiplies
@pytest.mark.parametrize("scaling", SCALINGS)
def test_a_product_and_its_gradients_are_near_those_of_bf16(scaling: Fp8Scaling) -> None:
    """e4m3 keeps 3 bits and e5m2 two: a sum of rounded products is off by some per cent."""
    x, weight, bias = drawn(2, 32, 64, seed=0), drawn(96, 64, seed=1), drawn(96, seed=2)
    other = [tensor.detach().clone().requires_grad_() for tensor in (x, weight, bias)]
    gradient = drawn(2, 32, 96, seed=3).detach()
    narrow, wide = fp8_linear(scaling)(x, weight, bias), functional.linear(*other)
    narrow.backward(gradient)
    wide.backward(gradient)
    assert 0.005 < off(narrow, wide) < 0.05
    assert all(0.005 < off(a.grad, b.grad) < 0.08 for a, b in zip((x, weight), other, strict=False))
    torch.testing.assert_close(bias.grad, other[2].grad)


def test_sums_are_fast_forward_and_exact_backward_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    told = []

    def product(a: Any, b: Any, *_: Any, out_dtype: Any, use_fast_accum: bool) -> torch.Tensor:
        told.append(use_fast_accum)
        return a.new_empty(len(a), b.shape[1], dtype=out_dtype)

    monkeypatch.setattr(torch, "_scaled_mm", product)
    monkeypatch.setattr(fp8, "_cast", lambda x, *_: (x, x))  # which this build cannot run there
    context = SimpleNamespace()
    context.save_for_backward = lambda *saved: setattr(context, "saved_tensors", saved)
    with FakeTensorMode():
        x, weight = (torch.empty(n, 64, dtype=torch.bfloat16, device="cuda") for n in (32, 96))
        gradient = fp8._Product.forward(context, x, weight, "tensor")
        fp8._Product.backward(context, gradient)
    assert told == [True, False, False]


@multiplies
def test_a_row_of_large_elements_costs_others_nothing_with_row_scales() -> None:
    x, weight = drawn(32, 64, seed=0).detach(), drawn(96, 64, seed=1).detach()
    x[0] *= 2.0**20
    exact = functional.linear(x, weight)[1:]
    of_tensor, of_row = (fp8_linear(scaling)(x, weight, None)[1:] for scaling in SCALINGS)
    assert off(of_tensor, exact) > 0.5
    assert off(of_row, exact) < 0.05


@functools.cache
def curve_of_one_process(shape: ModelShape, steps: int, **layout: Any) -> Curve:
    return reference_curve(tiny_point(shape=shape, measured_steps=steps, **layout))


@multiplies
@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "scaling"),
    [(TINY, "tensor"), (TINY_GPT, "row")],
    ids=lambda value: value if isinstance(value, str) else value.family,
)
def test_over_fifty_steps_the_loss_stays_within_a_band_of_bf16(
    shape: ModelShape, scaling: Fp8Scaling
) -> None:
    wide = curve_of_one_process(shape, 50, precision="bf16")
    narrow = curve_of_one_process(shape, 50, precision="fp8", fp8_scaling=scaling)
    assert narrow.losses != wide.losses
    assert narrow.losses == pytest.approx(wide.losses, abs=BAND)
    assert wide.losses[-1] < wide.losses[0] - BAND  # it learns meanwhile


LAYOUTS: list[dict[str, Any]] = [
    {"dp": 2, "zero_stage": 3, "activation_checkpointing": "full"},
    {"tp": 2, "zero_stage": 1, "sequence_parallel": True, "fp8_scaling": "row"},
    {"pp": 2, "zero_stage": 1, "gradient_accumulation_steps": 2},
    {"cp": 2, "zero_stage": 2, "attention": "flash2"},
]


@multiplies
@pytest.mark.ranks
@pytest.mark.parametrize(
    "point",
    [
        tiny_point(shape=TINY, precision="fp8", engine=engine, measured_steps=STEPS, **layout)
        for engine in ENGINES
        for layout in LAYOUTS
    ],
    ids=lambda point: f"{point.layout.engine} {point.layout.label}",
)
def test_every_layout_trains_in_eight_bits_as_one_process_does(learn: Learn, point: Point) -> None:
    """Not the same: a scale is of what a rank holds. Uncompiled, as compiling takes a minute."""
    layout = dataclasses.replace(point.layout, compile=True)
    assert not [*refusals(point.shape, layout), *engine_refusals(point.shape, layout)]
    scaling = point.layout.fp8_scaling
    alone = curve_of_one_process(point.shape, STEPS, precision="fp8", fp8_scaling=scaling)
    for rank in learn(point):
        assert rank["losses"] == pytest.approx(alone.losses, abs=BAND)
        if rank["grad_norms"] is not None:
            assert rank["grad_norms"] == pytest.approx(alone.grad_norms, rel=0.1)


@pytest.mark.parametrize(
    ("changed", "layout", "reason"),
    [
        ({"num_experts": 4, "experts_per_token": 2, "expert_ffn_hidden_size": 48}, {}, "experts"),
        ({"ffn_hidden_size": 88}, {}, "ffn_hidden_size / tp = 88"),
        ({"ffn_hidden_size": 128}, {"tp": 4}, "num_kv_heads x head_dim / tp = 8"),
        ({}, {"seq_length": 8, "micro_batch_size": 1, "dp": 8}, "seq_length / cp = 8"),
        ({}, {"precision": "bf16", "fp8_scaling": "row"}, "precision=bf16 has none"),
        ({}, {"compile": False}, "precision=fp8 without compile"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_eight_bits_cannot_do_is_one_sentence(
    changed: dict[str, Any], layout: dict[str, Any], reason: str
) -> None:
    shape = dataclasses.replace(TINY, **changed)
    compiles = not changed.get("num_experts")
    point = tiny_point(shape=shape, **({"precision": "fp8", "compile": compiles} | layout))
    (sentence,) = [*refusals(shape, point.layout), *engine_refusals(shape, point.layout)]
    assert reason in sentence


def test_a_gpu_without_eight_bits_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "A100")
    with pytest.raises(KernelUnavailable, match=r">= 8.9, not A100 \(8.0\)"):
        require_fp8(torch.device("cuda"))
