"""Bytes that kernels keep for backward, by formula and by what autograd is asked to keep."""

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from scaling.predict.cost import own_layer
from scaling.train.kernels import attention, fused
from scaling.train.rehearsal.standins import stand_ins

BATCH, TOKENS, HEADS, GROUPS, WIDTH, INNER, VOCABULARY = 2, 64, 8, 2, 32, 96, 128
BF16 = 2  # bytes


def drawn(*sizes: int) -> torch.Tensor:
    return torch.randn(*sizes, dtype=torch.bfloat16, requires_grad=True)


def kept(call: Callable[[], torch.Tensor], *beside: torch.Tensor) -> int:
    """Bytes that a call lets autograd save, each storage once, but for those `beside` it."""
    storages: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        call()
    others = {tensor.untyped_storage().data_ptr() for tensor in beside}
    return sum(size for storage, size in storages.items() if storage not in others)


@pytest.mark.parametrize("kernel", ["flash2", "flash3"])
def test_a_flash_kernel_keeps_what_goes_in_and_out_and_a_number_a_row(kernel: str) -> None:
    """flash2 is torch's own on a CPU, flash3 the stand-in for its package."""
    query, key, value = (drawn(BATCH, n, TOKENS, WIDTH) for n in (HEADS, GROUPS, GROUPS))
    with stand_ins():
        found = kept(lambda: attention.CALLS[kernel](query, key, value))
    rows = BATCH * TOKENS * HEADS
    expected = own_layer.saved_by_flash_attention(
        BF16 * rows * WIDTH, BF16 * rows * WIDTH * GROUPS / HEADS, rows
    )
    assert found == expected


def test_a_fused_norm_keeps_its_input_and_a_number_a_token() -> None:
    """Beside it the same by torch: a layer norm in one kernel, which keeps the mean as well."""
    x, weight = drawn(BATCH, TOKENS, WIDTH), drawn(WIDTH)
    tokens = BATCH * TOKENS
    expected = own_layer.saved_by_rms_norm(BF16 * tokens * WIDTH, tokens)
    with stand_ins():
        assert kept(lambda: fused.rms_norm(x, weight, 1e-5), weight) == expected
    by_torch = kept(lambda: functional.layer_norm(x, (WIDTH,), weight), weight)
    assert by_torch in (expected + 4 * tokens, expected)  # 4 or 2 bytes for each of the two


def test_a_fused_gate_keeps_what_goes_in() -> None:
    gate, up = drawn(BATCH, TOKENS, INNER), drawn(BATCH, TOKENS, INNER)
    expected = own_layer.saved_by_gate(BF16 * BATCH * TOKENS * INNER)

    def checkpointed() -> torch.Tensor:
        def product(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
            return functional.silu(gate) * up

        # not the other kind, which saves by hooks of its own
        result: torch.Tensor = checkpoint(product, gate, up, use_reentrant=True)
        return result

    with stand_ins():
        assert kept(lambda: fused.gated_silu(gate, up)) == expected
    assert kept(checkpointed) == expected
    assert kept(lambda: functional.silu(gate) * up) == expected * 3 / 2  # the plain one


def test_a_fused_loss_keeps_both_gradients_and_no_logits() -> None:
    x, weight = drawn(BATCH, TOKENS, WIDTH), drawn(VOCABULARY, WIDTH)
    labels = torch.zeros(BATCH, TOKENS, dtype=torch.int64)
    hidden, head = BF16 * BATCH * TOKENS * WIDTH, BF16 * VOCABULARY * WIDTH
    expected = own_layer.saved_by_linear_cross_entropy(hidden, head)

    class ByTorch(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight):
            with torch.enable_grad():
                x, weight = (each.detach().requires_grad_() for each in (x, weight))
                loss = functional.cross_entropy((x @ weight.T).flatten(0, 1), labels.flatten())
                ctx.save_for_backward(*torch.autograd.grad(loss, (x, weight)))
            return loss.detach()

    # the hooks would also see what the reference saves inside; only what is left counts
    loss = ByTorch.apply(x, weight)
    assert sum(each.nbytes for each in loss.grad_fn.saved_tensors) == expected
    with stand_ins():
        assert kept(lambda: fused.linear_cross_entropy(x, weight, labels)) == expected
