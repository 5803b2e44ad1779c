"""Liger's kernels stand in here as plain torch; one that is wrong must fail."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

from scaling.check import kernel_checks
from scaling.check.kernel_checks import SMALL, fused_kernels, kernel_lines
from scaling.check.lines import Line
from scaling.layout.kernels import ATTENTION
from scaling.train.kernels import fused
from tests.train.reference import CPU

TINY = dataclasses.replace(SMALL, seq_length=32, vocab_size=64)


def rounded_cross_entropy(
    x: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor
) -> torch.Tensor:
    """Logits in the inputs' precision, the rest in fp32."""
    return functional.cross_entropy((x @ weight.t()).float().flatten(0, 1), labels.flatten())


@pytest.fixture(autouse=True)
def _once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_checks, "time_samples", lambda run, **_: [run() and 1.0])


@pytest.fixture
def liger(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Line]]:
    """The lines of Liger's kernels where each is the plain code, but for those that are given."""

    def checked(**wrong: Any) -> dict[str, Line]:
        plain = {kernel.name: kernel.reference for kernel in fused_kernels(TINY, CPU)}
        stand_ins = {
            "rms_norm": lambda x, w, _: plain["fused_norm"](x, w),
            "rotate": lambda q, k, *_: plain["fused_rope"](q, k),
            "gated_silu": plain["fused_mlp silu"],
            "gated_gelu": plain["fused_mlp gelu"],
            "linear_cross_entropy": rounded_cross_entropy,
        }
        monkeypatch.setattr(kernel_checks, "require_package", lambda *_: None)
        for name, call in (stand_ins | wrong).items():
            monkeypatch.setattr(fused, name, call)
        lines = list(kernel_lines(TINY, "bf16", CPU))
        return {line.name: line for line in lines if line.name.startswith("fused")}

    return checked


def test_every_attention_and_fused_kernel_has_a_line() -> None:
    lines = {line.name: line for line in kernel_lines(TINY, "fp32", CPU)}
    assert {f"attention {name} fp32" for name, kernel in ATTENTION.items() if kernel.runs} <= set(
        lines
    )
    for name in ("math", "flash2"):
        line = lines[f"attention {name} fp32"]
        assert line.state == "pass"
        assert line.value is not None
        assert 0 < line.value < 1e-5
        assert "FLOP/s" in line.said
    assert "not installed" in lines["attention flash3 fp32"].said
    rest = {name: line.state for name, line in lines.items() if line.value is None}
    assert len(rest) == len(lines) - 2
    assert set(rest.values()) == {"not here"}


def test_an_attention_that_sees_one_token_too_many_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def peeking(query: Any, key: Any, value: Any, _: Any) -> torch.Tensor:
        key, value = (x.repeat_interleave(2, 1) for x in (key, value))
        scores = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5
        ahead = torch.ones(32, 32, dtype=torch.bool).triu(2)
        return scores.masked_fill(ahead, -math.inf).softmax(-1) @ value

    monkeypatch.setattr(kernel_checks, "attend", peeking)
    lines = {line.name: line.state for line in kernel_lines(TINY, "bf16", CPU)}
    assert lines["attention math bf16"] == "fail"


def test_fused_kernels_that_round_as_their_precision_does_pass(liger: Any) -> None:
    lines = liger()
    assert len(lines) == 5
    assert {line.state for line in lines.values()} == {"pass"}


@pytest.mark.parametrize(
    ("function", "wrong", "named"),
    [
        ("rms_norm", lambda x, w, _: functional.layer_norm(x, w.shape, w), "fused_norm"),
        ("rotate", lambda q, k, *_: (q * 1, k * 1), "fused_rope"),
        ("gated_silu", lambda gate, up: functional.relu(gate) * up, "fused_mlp silu"),
        ("gated_gelu", lambda gate, up: functional.silu(gate) * up, "fused_mlp gelu"),
        (
            "linear_cross_entropy",  # the right loss, whose gradient lacks the head's
            lambda x, w, labels: functional.cross_entropy(
                (x @ w.t().detach() + 0 * w.sum()).flatten(0, 1), labels.flatten()
            ),
            "fused_cross_entropy",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_fused_kernel_that_is_wrong_fails_and_no_other(
    liger: Any, function: str, wrong: Any, named: str
) -> None:
    lines = liger(**{function: wrong})
    failed = {name for name, line in lines.items() if line.state == "fail"}
    assert failed == {f"{named} bf16"}


def test_a_kernel_that_raises_is_a_line_and_not_the_end(liger: Any) -> None:
    def broken(*_: Any) -> torch.Tensor:
        raise RuntimeError("an illegal memory access was encountered")

    line = liger(gated_silu=broken)["fused_mlp silu bf16"]
    assert (line.state, line.said) == ("fail", "an illegal memory access was encountered")
