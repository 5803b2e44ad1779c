"""The kernels of one Llama 2 7B layer, and what it saves for backward, on fake tensors.

Bytes are what a kernel reads and writes. They bound its time on a GPU, so a golden table holds them
without one.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from scaling.layout.layout import Layout
from scaling.layout.shapes import ModelShape
from scaling.predict.cost.compute import hbm_bytes_per_s, layer_time
from scaling.predict.read.points import points_of_layouts
from scaling.train.model import blocks
from scaling.train.model.blueprint import Blueprint
from scaling.train.model.decoder import Decoder, Layer
from scaling.train.parallel.tensor import TensorParallel
from tests.shipped import CLUSTERS, MODELS
from tests.train.test_model import CPU

LLAMA_7B = MODELS["llama2_7b"]
TINYLLAMA = dataclasses.replace(MODELS["tinyllama_1b"], num_layers=4)
TOKENS = 4096

# Operators that launch no kernel.
_FREE = {
    "view", "_unsafe_view", "transpose", "t", "unsqueeze", "expand", "slice", "split", "detach",
    "alias", "empty", "empty_like", "new_empty", "device", "permute", "select",
}  # fmt: skip

# One H100: dense bf16 FLOP/s, and the shares that products and attention reach of it; bytes/s.
PEAK, PRODUCTS_SHARE, ATTENTION_SHARES, BANDWIDTH = 989e12, 0.72, (0.50, 0.42), 2.9e12
_PHASES = ("forward", "backward")


@torch.library.custom_op("scaling_tests::rms_norm", mutates_args=())
def rms_norm(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """The operator of torch's RMSNorm on a GPU; a CPU has none."""
    raise NotImplementedError


@torch.library.custom_op("scaling_tests::rms_norm_backward", mutates_args=())
def rms_norm_backward(
    gradient: Tensor, x: Tensor, scale: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor]:
    raise NotImplementedError


@rms_norm.register_fake
def _(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), x.new_empty(x.shape[:-1], dtype=torch.float32)


@rms_norm_backward.register_fake
def _(gradient: Tensor, x: Tensor, scale: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(weight)


def _save(ctx: Any, inputs: tuple[Tensor, Tensor], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs, output[1])


def _backward(ctx: Any, gradient: Tensor, _: Tensor | None) -> tuple[Tensor, Tensor]:
    x, weight, scale = ctx.saved_tensors
    gradients: tuple[Tensor, Tensor] = rms_norm_backward(gradient, x, scale, weight)
    return gradients


rms_norm.register_autograd(_backward, setup_context=_save)


class Kernels(TorchDispatchMode):
    """Records (phase, name, bytes, FLOPs) of each operator that launches a kernel."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.phase, self.found = 0, list[tuple[int, str, int, int]]()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name not in _FREE:
            read = {id(x): x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)}
            written = [x for x in tree_leaves(out) if isinstance(x, Tensor)]
            size = sum(x.numel() * x.element_size() for x in [*read.values(), *written])
            self.found.append((self.phase, name, size, _flops(name, self.phase, args)))
        return out

    def seconds(self) -> float:
        """Least seconds on an H100, kernel by kernel: its bytes or its products."""
        return sum(
            flops / (PEAK * ATTENTION_SHARES[phase])
            if "flash" in name
            else max(flops / (PEAK * PRODUCTS_SHARE), size / BANDWIDTH)
            for phase, name, size, flops in self.found
        )

    def table(self) -> str:
        """Kernels and bytes of each phase by name, then their sums."""
        lines = []
        for phase, title in enumerate(_PHASES):
            names = {name for at, name, *_ in self.found if at == phase}
            for name in sorted(names):
                sizes = [size for at, of, size, _ in self.found if (at, of) == (phase, name)]
                lines.append(f"{title:8} {len(sizes):3d} {sum(sizes) / 1e6:8.1f} MB  {name}")
        total = sum(size for *_, size, _ in self.found)
        return "\n".join([*lines, f"both     {len(self.found):3d} {total / 1e6:8.1f} MB", ""])


def _flops(name: str, phase: int, args: tuple[Any, ...]) -> int:
    if name == "mm":
        (rows, inner), columns = args[0].shape, args[1].shape[1]
        return 2 * rows * inner * columns
    if "flash" in name:  # causal: half of 2 products forward, of 5 backward
        batch, heads, tokens, head_dim = args[phase].shape
        return (5 if phase else 2) * batch * heads * tokens**2 * head_dim
    return 0


def plan_of(shape: ModelShape, batch: int, tokens: int) -> Blueprint:
    layout = Layout(seq_length=tokens, micro_batch_size=batch, precision="bf16", attention="flash2")
    return Blueprint(shape=shape, layout=layout, tp=TensorParallel(), seed=0, device=CPU)


@pytest.fixture(autouse=True)
def on_fake_tensors(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(functional, "rms_norm", lambda x, _, weight, __: rms_norm(x, weight)[0])
    forget_tables()  # a test before may have left real ones, and this one leaves fake ones
    with FakeTensorMode():
        yield
    forget_tables()


def forget_tables() -> None:
    blocks.rotary_table.cache_clear()
    blocks._cached_rotary_table.cache_clear()


def kernels_of(run: Callable[[], Tensor]) -> Kernels:
    run()  # tables are computed once
    found = Kernels()
    with found:
        out = run()
        gradient = torch.empty_like(out)
        found.phase = 1
        out.backward(gradient)
    return found


def kernels_of_a_layer() -> Kernels:
    layer = Layer(plan_of(LLAMA_7B, 1, TOKENS), 0)
    x = torch.empty(1, TOKENS, 4096, dtype=torch.bfloat16, requires_grad=True)
    return kernels_of(lambda: layer(x))


def test_kernels_and_bytes_of_an_eager_7b_layer_stay_as_recorded(golden) -> None:
    found = kernels_of_a_layer()
    golden("layer_kernels.txt", found.table())
    assert found.seconds() < 9400e-6  # torchtitan's eager layer plus 2 %


def predicted_bytes(*, compiled: bool) -> float:
    """Bytes that the element-wise operators of a 7B layer move in the step model."""
    layout = Layout(seq_length=TOKENS, precision="bf16", attention="flash2", compile=compiled)
    where = {"models": ["llama2_7b"], "clusters": ["h100-80gb-dgx"], "gpus_per_node": [8.0]}
    (group,) = points_of_layouts([layout], [LLAMA_7B], CLUSTERS, **where).groups
    (seconds,) = layer_time(group, group.features, group.start)[0]["elementwise_s"]
    return seconds * hbm_bytes_per_s(group)


def test_the_step_model_moves_at_most_the_bytes_of_an_eager_layer() -> None:
    """It counts two thirds: activation and rotation as if fused (test_generated has the others)."""
    moved = sum(size for _, _, size, flops in kernels_of_a_layer().found if not flops)
    assert 0.65 < predicted_bytes(compiled=False) / moved < 1


def saved_bytes(call: Callable[[], Tensor], weights: Iterator[Tensor]) -> int:
    """Bytes that a call saves for backward, each storage once, without the weights."""
    storages = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        storages[storage._cdata] = storage  # kept alive: a freed one's number is used again
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        call()
    others = {weight.untyped_storage()._cdata for weight in weights}
    return sum(storage.nbytes() for number, storage in storages.items() if number not in others)


def test_a_step_holds_no_more_than_transformers_in_like_states() -> None:
    """Weights, gradients and both moments in bf16, and what backward needs, the loss included."""
    from transformers import LlamaConfig, LlamaForCausalLM

    plan, sizes = plan_of(TINYLLAMA, 4, 2048), (4, 2048)
    ids, labels = (torch.zeros(sizes, dtype=torch.int64) for _ in "il")
    ours = Decoder(plan)
    ours(ids, labels)  # tables are computed once
    config = LlamaConfig(
        vocab_size=32000, hidden_size=2048, intermediate_size=5632, num_hidden_layers=4,
        num_attention_heads=32, num_key_value_heads=4, use_cache=False,
    )  # fmt: skip
    theirs = LlamaForCausalLM._from_config(config, attn_implementation="sdpa", dtype=torch.bfloat16)

    def their_loss() -> Tensor:
        logits = theirs(input_ids=ids).logits
        return functional.cross_entropy(logits.float().flatten(0, 1), labels.flatten())

    held = []
    for model, loss in ((ours, functools.partial(ours, ids, labels)), (theirs, their_loss)):
        states = 4 * sum(weight.nbytes for weight in model.parameters())
        held.append(states + saved_bytes(loss, model.parameters()))
    assert held[0] < 0.95 * held[1]
    ours_size, theirs_size = (sum(w.numel() for w in m.parameters()) for m in (ours, theirs))
    assert ours_size == theirs_size
