"""The encoder-decoder against transformers' mT5, whose weights it is given."""

import dataclasses
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

from scaling.layout.shapes import ModelShape
from scaling.train.model.encoder_decoder import EncoderDecoder
from tests.points import TINY_T5, tiny_point
from tests.train.test_model import blueprint

if TYPE_CHECKING:
    from transformers import MT5ForConditionalGeneration

Weights = dict[str, torch.Tensor]
SHAPES = {
    "mT5": TINY_T5,
    "a key for two heads": dataclasses.replace(TINY_T5, num_kv_heads=4),
    "no gate": dataclasses.replace(TINY_T5, gated_mlp=False),
}
FAR = 160  # tokens: beyond the last bucket's 128


def drawn(shape: ModelShape, seq_length: int) -> EncoderDecoder:
    """Ours, every weight drawn anew: a scale of 1 would hide where it goes."""
    point = tiny_point(shape=shape, seq_length=seq_length)
    model = EncoderDecoder(blueprint(point))
    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.1 * torch.randn(weight.shape, generator=random))
    return model


def transformers_model(shape: ModelShape) -> "MT5ForConditionalGeneration":
    from transformers import MT5Config, MT5ForConditionalGeneration  # late: it takes seconds

    model = MT5ForConditionalGeneration(
        MT5Config(
            vocab_size=shape.vocab_size,
            d_model=shape.hidden_size,
            d_kv=shape.head_dim,
            d_ff=shape.ffn_hidden_size,
            num_layers=shape.num_encoder_layers,
            num_decoder_layers=shape.num_layers,
            num_heads=shape.num_heads,
            feed_forward_proj="gated-gelu" if shape.gated_mlp else "relu",
        )
    ).eval()
    # its configuration ties the head whatever it is told; the released mT5 has one of its own
    model.lm_head.weight = nn.Parameter(torch.empty_like(model.lm_head.weight))
    return model


def as_mt5(ours: Weights, shape: ModelShape) -> Weights:
    vocabulary = ours["embedding.weight"]
    theirs = {
        "shared.weight": vocabulary,
        "encoder.embed_tokens.weight": vocabulary,
        "decoder.embed_tokens.weight": vocabulary,
        "encoder.final_layer_norm.weight": ours["encoder_norm.weight"],
        "decoder.final_layer_norm.weight": ours["norm.weight"],
        "lm_head.weight": ours["head.weight"],
    }
    table = "block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    theirs |= {
        f"{stack}.{table}": ours[f"{stack}_bias.table"].T for stack in ("encoder", "decoder")
    }
    for i in range(shape.num_encoder_layers):
        names = {"attention": "0.SelfAttention", "feed_forward": "1.DenseReluDense"}
        theirs |= _layer(ours, shape, f"encoder.{i}.", f"encoder.block.{i}.layer.", names)
    for i in range(shape.num_layers):
        names = {
            "attention": "0.SelfAttention",
            "cross_attention": "1.EncDecAttention",
            "feed_forward": "2.DenseReluDense",
        }
        theirs |= _layer(ours, shape, f"decoder.{i}.", f"decoder.block.{i}.layer.", names)
    return theirs


def _layer(ours: Weights, shape: ModelShape, a: str, b: str, names: dict[str, str]) -> Weights:
    shared = shape.num_heads // shape.num_kv_heads
    inner = {"gate": "wi_0", "up": "wi_1"} if shape.gated_mlp else {"up": "wi"}
    theirs = {}
    for part, named in names.items():
        norm = part.removesuffix("_attention") if part == "cross_attention" else part
        theirs[f"{b}{named[0]}.layer_norm.weight"] = ours[f"{a}{norm}_norm.weight"]
        if part == "feed_forward":
            for our_name, their_name in (inner | {"down": "wo"}).items():
                theirs[f"{b}{named}.{their_name}.weight"] = ours[f"{a}{part}.{our_name}"]
            continue
        for name in ("query", "output"):
            theirs[f"{b}{named}.{name[0]}.weight"] = ours[f"{a}{part}.{name}"]
        for name in ("key", "value"):  # theirs has one for every query head
            heads = ours[f"{a}{part}.{name}"].unflatten(0, (-1, shape.head_dim))
            theirs[f"{b}{named}.{name[0]}.weight"] = heads.repeat_interleave(shared, 0).flatten(
                0, 1
            )
    return theirs


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_an_encoder_decoder_gives_the_logits_of_transformers(shape: ModelShape) -> None:
    ours, theirs = drawn(shape, FAR), transformers_model(shape)
    theirs.load_state_dict(as_mt5(dict(ours.named_parameters()), shape))
    ids = torch.randint(0, 256, (2, 2, FAR), generator=torch.Generator().manual_seed(0))
    expected = theirs(input_ids=ids[:, 0], decoder_input_ids=ids[:, 1]).logits
    torch.testing.assert_close(ours.logits(ids), expected, atol=1e-4, rtol=0)


def test_its_gradients_are_those_of_transformers() -> None:
    """The tables' above all: each of their numbers gathers the gradient of many scores."""
    ours, theirs = drawn(TINY_T5, 40), transformers_model(TINY_T5)
    theirs.load_state_dict(as_mt5(dict(ours.named_parameters()), TINY_T5))
    ids = torch.randint(0, 256, (2, 2, 40), generator=torch.Generator().manual_seed(0))
    labels = ids[:, 1].roll(-1, 1)
    ours(ids, labels).backward()
    theirs(input_ids=ids[:, 0], decoder_input_ids=ids[:, 1], labels=labels).loss.backward()
    gradients = {name: weight.grad for name, weight in ours.named_parameters()}
    expected = as_mt5(gradients, TINY_T5)  # type: ignore[arg-type]
    for name, weight in theirs.named_parameters():
        torch.testing.assert_close(weight.grad, expected[name], atol=1e-6, rtol=1e-3)
