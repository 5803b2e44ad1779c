"""The arguments of Liger's kernels and attention packages, by stand-ins that say what they do.

No GPU: the kernels themselves were not run by these tests. A stand-in computes in plain torch what
the package documents, so that a model built on it must train what the plain one trains.
"""

import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

from scaling.layout.kernels import ATTENTION
from scaling.train.kernels import attention as kernels
from scaling.train.kernels.attention import attend, select_flash
from scaling.train.kernels.fused import LOGITS_PER_HIDDEN
from scaling.train.model.decoder import Decoder
from tests.points import tiny_point
from tests.train.test_model import blueprint

IDS = torch.randint(0, 256, (2, 32), generator=torch.Generator().manual_seed(0))


def applied(function: Callable[..., Any]) -> Any:
    """Called as an autograd function is."""
    return types.SimpleNamespace(apply=function)


def rms_norm(x, weight, epsilon, offset, casting, in_place):
    assert (offset, casting, in_place) == (0.0, "llama", False)
    return functional.rms_norm(x, weight.shape, weight, epsilon)


def rope(query, key, cosine, sine):
    """transformers' Llama: halves of a head [b, n, s, d] turned by tables [1, s, d]."""

    def turned(x):
        first, second = x.chunk(2, -1)
        return x * cosine.unsqueeze(1) + torch.cat((-second, first), -1) * sine.unsqueeze(1)

    return turned(query), turned(key)


def linear_cross_entropy(x, weight, target, bias, ce_weight, ignored, z, smoothing, reduction,
                         softcap, return_z, accumulated, *others):  # fmt: skip
    told = (bias, ce_weight, z, smoothing, reduction, softcap)
    assert told == (None, None, 0.0, 0.0, "mean", None)
    assert (return_z, accumulated) == (False, torch.float32)
    assert others == (False, False, False, None, None, LOGITS_PER_HIDDEN)
    assert (x.ndim, target.ndim) == (2, 1)
    return functional.cross_entropy(x @ weight.T, target, ignore_index=ignored), None, None, None


@pytest.fixture
def liger(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_ins = {
        "rms_norm": {"LigerRMSNormFunction": applied(rms_norm)},
        "rope": {"LigerRopeFunction": applied(rope)},
        "swiglu": {"LigerSiLUMulFunction": applied(lambda a, b: functional.silu(a) * b)},
        "fused_linear_cross_entropy": {
            "LigerFusedLinearCrossEntropyFunction": applied(linear_cross_entropy)
        },
    }
    for name, held in stand_ins.items():
        stand_in(monkeypatch, f"liger_kernel.ops.{name}", **held)


def trained_once(**layout: bool) -> tuple[float, dict[str, torch.Tensor]]:
    model = Decoder(blueprint(tiny_point(**layout)))
    loss = model(IDS, IDS.roll(1, 1))
    loss.backward()
    return loss.item(), {name: w.grad for name, w in model.named_parameters() if w.grad is not None}


@pytest.mark.usefixtures("liger")
@pytest.mark.parametrize("axis", ["fused_norm", "fused_rope", "fused_mlp", "fused_cross_entropy"])
def test_a_fused_kernel_takes_the_place_of_the_plain_code(axis: str) -> None:
    loss, gradients = trained_once()
    fused_loss, fused_gradients = trained_once(**{axis: True})
    assert fused_loss == pytest.approx(loss, abs=1e-6)
    for name, expected in gradients.items():
        torch.testing.assert_close(fused_gradients[name], expected, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("with_logsumexp", [False, True])
@pytest.mark.parametrize("attention", ["flash3", "flash4"])
def test_a_package_gets_tokens_before_heads_and_a_causal_mask(
    monkeypatch: pytest.MonkeyPatch, attention: Any, with_logsumexp: bool
) -> None:
    monkeypatch.setattr(kernels, "SWITCHES_FLASH", False)

    def flash_attn_func(query, key, value, *, causal):
        assert causal
        assert (query.shape, key.shape) == ((1, 16, 4, 8), (1, 16, 2, 8))  # [b, s, n, d]
        q, k, v = (x.transpose(1, 2) for x in (query, key, value))
        out = attend(q, k, v, "math").transpose(1, 2)
        return (out, None) if with_logsumexp else out

    stand_in(monkeypatch, module_of(attention), flash_attn_func=flash_attn_func)
    query, key, value = some_heads()
    found = attend(query, key, value, attention)
    torch.testing.assert_close(found, attend(query, key, value, "math"))


@pytest.mark.parametrize(("attention", "name"), [("flash3", "FA3"), ("flash4", "FA4")])
def test_torchs_flash_attention_is_switched_and_switched_back(
    monkeypatch: pytest.MonkeyPatch, attention: Any, name: str
) -> None:
    asked: list[str | None] = [None]
    switch = {
        "current_flash_attention_impl": lambda: asked[-1],
        "activate_flash_attention_impl": asked.append,
        "restore_flash_attention_impl": lambda: asked.append(None),
    }
    for function, instead in switch.items():
        monkeypatch.setattr(torch.nn.attention, function, instead, raising=False)
    monkeypatch.setattr(kernels, "SWITCHES_FLASH", True)
    for selected in (attention, attention, "flash2"):
        select_flash(ATTENTION[selected])
    assert asked == [None, name, None, name, None]
    query, key, value = some_heads()
    found = attend(query, key, value, attention)
    torch.testing.assert_close(found, attend(query, key, value, "flash2"))


def module_of(attention: str) -> str:
    package = ATTENTION[attention].package
    assert package is not None
    return package.module


def stand_in(monkeypatch: pytest.MonkeyPatch, name: str, **held: Any) -> None:
    parts = name.split(".")
    for end in range(1, len(parts)):
        parent = ".".join(parts[:end])
        monkeypatch.setitem(sys.modules, parent, types.ModuleType(parent))
    module = types.ModuleType(name)
    vars(module).update(held)
    monkeypatch.setitem(sys.modules, name, module)


def some_heads() -> list[torch.Tensor]:
    random = torch.Generator().manual_seed(0)
    return [torch.randn(1, heads, 16, 8, generator=random) for heads in (4, 2, 2)]
