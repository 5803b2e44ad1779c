"""With the same weights our models give the logits and gradients of transformers' models.

Its GPT-2 keeps matrices transposed and query, key and value in one.
"""

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
import torch
from torch import nn
from torch.nn import functional

from scaling.layout.shapes import ModelShape
from scaling.train.model.decoder import Decoder
from scaling.train.model.encoder_decoder import EncoderDecoder
from tests.points import TINY, TINY_GPT, TINY_T5, tiny_point
from tests.train.reference import reference_curve
from tests.train.test_model import blueprint

if TYPE_CHECKING:
    from transformers import MT5ForConditionalGeneration

IDS = torch.randint(0, 256, (2, 32), generator=torch.Generator().manual_seed(0))
Weights = dict[str, torch.Tensor]
Model = TypeVar("Model", bound=nn.Module)


def decoder(shape: ModelShape, **layout: Any) -> Decoder:
    return drawn(Decoder(blueprint(tiny_point(shape=shape, **layout))))


def drawn(model: Model) -> Model:
    """Ours, with every weight drawn: a bias of 0 or a scale of 1 would hide where it goes."""
    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.1 * torch.randn(weight.shape, generator=random))
    return model


def logits_of(model: Decoder) -> torch.Tensor:
    x = model.embedding(IDS)
    for layer in model.layers:
        x = layer(x)
    return model.head(model.norm(x))


def renamed(ours: Weights, names: dict[str, str], layers: int = 0) -> Weights:
    """Our weights by the names of theirs; `{}` stands for the number of a layer."""
    return {
        theirs.format(index): ours[name.format(index)]
        for theirs, name in names.items()
        for index in range(layers if "{}" in name else 1)
    }


def as_llama(
    ours: Weights, shape: ModelShape, mlp: tuple[str, ...] = ("gate", "up", "down")
) -> Weights:
    layer = "model.layers.{}."
    names = {
        "model.embed_tokens.weight": "embedding.weight",
        "model.norm.weight": "norm.weight",
        "lm_head.weight": "embedding.weight" if shape.tied_embeddings else "head.weight",
        f"{layer}input_layernorm.weight": "layers.{}.attention_norm.weight",
        f"{layer}post_attention_layernorm.weight": "layers.{}.feed_forward_norm.weight",
    }
    for part in ("query", "key", "value", "output"):
        names[f"{layer}self_attn.{part[0]}_proj.weight"] = f"layers.{{}}.attention.{part}"
    for part in mlp:
        names[f"{layer}mlp.{part}_proj.weight"] = f"layers.{{}}.feed_forward.{part}"
    return renamed(ours, names, shape.num_layers)


def as_gpt2(ours: Weights, shape: ModelShape) -> Weights:
    layer, parts = "transformer.h.{}.", ("query", "key", "value")
    for i in range(shape.num_layers):  # its matrices of attention are one
        attention = f"layers.{i}.attention"
        ours |= {
            f"{attention}.joined": torch.cat([ours[f"{attention}.{part}"] for part in parts]),
            f"{attention}.joined_bias": torch.cat(
                [ours[f"{attention}.{part}_bias"] for part in parts]
            ),
        }
    names = {
        "transformer.wte.weight": "embedding.weight",
        "transformer.wpe.weight": "embedding.positions",
        "lm_head.weight": "embedding.weight" if shape.tied_embeddings else "head.weight",
        f"{layer}attn.c_attn.weight": "layers.{}.attention.joined",
        f"{layer}attn.c_attn.bias": "layers.{}.attention.joined_bias",
        f"{layer}attn.c_proj.weight": "layers.{}.attention.output",
        f"{layer}attn.c_proj.bias": "layers.{}.attention_bias",
        f"{layer}mlp.c_fc.weight": "layers.{}.feed_forward.up",
        f"{layer}mlp.c_fc.bias": "layers.{}.feed_forward.up_bias",
        f"{layer}mlp.c_proj.weight": "layers.{}.feed_forward.down",
        f"{layer}mlp.c_proj.bias": "layers.{}.feed_forward_bias",
    }
    for kind in ("weight", "bias"):
        names |= {
            f"transformer.ln_f.{kind}": f"norm.{kind}",
            f"{layer}ln_1.{kind}": f"layers.{{}}.attention_norm.{kind}",
            f"{layer}ln_2.{kind}": f"layers.{{}}.feed_forward_norm.{kind}",
        }
    theirs = renamed(ours, names, shape.num_layers)
    return {name: w.T if ".c_" in name and w.ndim == 2 else w for name, w in theirs.items()}


def compare_gradients(
    ours: nn.Module, theirs: nn.Module, logits: torch.Tensor,
    batch: tuple[torch.Tensor, torch.Tensor], named: Callable[[Weights], Weights],
) -> None:  # fmt: skip
    """Each weight has the gradient of theirs, by the loss of a batch whose logits they gave."""
    ours(*batch).backward()
    functional.cross_entropy(logits.flatten(0, 1), batch[1].flatten()).backward()
    gradients = named({n: w.grad for n, w in ours.named_parameters() if w.grad is not None})
    for name, weight in theirs.named_parameters():
        torch.testing.assert_close(gradients[name], weight.grad, atol=1e-6, rtol=1e-3)


def compare(shape: ModelShape, theirs: Any, named: Callable[..., Weights]) -> None:
    ours = decoder(shape)
    theirs.load_state_dict(named(dict(ours.named_parameters()), shape))
    expected = theirs(IDS).logits
    torch.testing.assert_close(logits_of(ours), expected, atol=1e-4, rtol=0)
    compare_gradients(ours, theirs, expected, (IDS, IDS.roll(-1, 1)), lambda w: named(w, shape))


@pytest.mark.parametrize("tied", [False, True])
def test_a_llama_gives_the_logits_and_gradients_of_transformers(tied: bool) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM  # late: seconds, of every collection

    shape = dataclasses.replace(TINY, tied_embeddings=tied)
    config = LlamaConfig(
        vocab_size=shape.vocab_size, hidden_size=shape.hidden_size,
        intermediate_size=shape.ffn_hidden_size, num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads, num_key_value_heads=shape.num_kv_heads,
        rms_norm_eps=1e-5, tie_word_embeddings=tied,
    )  # fmt: skip
    compare(shape, LlamaForCausalLM(config), as_llama)


@pytest.mark.parametrize("tied", [False, True])
def test_a_gpt_gives_the_logits_and_gradients_of_transformers(tied: bool) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    shape = dataclasses.replace(TINY_GPT, tied_embeddings=tied)
    config = GPT2Config(
        vocab_size=shape.vocab_size, n_positions=shape.max_positions, n_embd=shape.hidden_size,
        n_layer=shape.num_layers, n_head=shape.num_heads, n_inner=shape.ffn_hidden_size,
        activation_function="gelu", tie_word_embeddings=tied,
    )  # fmt: skip
    compare(shape, GPT2LMHeadModel(config).eval(), as_gpt2)  # GPT-2 trains with dropout


SHAPES = {
    "mT5": TINY_T5,
    "a key for two heads": dataclasses.replace(TINY_T5, num_kv_heads=4),
    "no gate": dataclasses.replace(TINY_T5, gated_mlp=False),
}
FAR = 160  # tokens: beyond the last bucket's 128


def transformers_model(shape: ModelShape) -> "MT5ForConditionalGeneration":
    from transformers import MT5Config, MT5ForConditionalGeneration  # late: it takes seconds

    config = MT5Config(
        vocab_size=shape.vocab_size, d_model=shape.hidden_size, d_kv=shape.head_dim,
        d_ff=shape.ffn_hidden_size, num_layers=shape.num_encoder_layers,
        num_decoder_layers=shape.num_layers, num_heads=shape.num_heads,
        feed_forward_proj="gated-gelu" if shape.gated_mlp else "relu",
    )  # fmt: skip
    model = MT5ForConditionalGeneration(config).eval()
    # its configuration ties the head whatever it is told; the released mT5 has one of its own
    model.lm_head.weight = nn.Parameter(torch.empty_like(model.lm_head.weight))
    return model


def as_mt5(ours: Weights, shape: ModelShape) -> Weights:
    theirs = renamed(
        ours,
        {
            "shared.weight": "embedding.weight",
            "encoder.embed_tokens.weight": "embedding.weight",
            "decoder.embed_tokens.weight": "embedding.weight",
            "encoder.final_layer_norm.weight": "encoder_norm.weight",
            "decoder.final_layer_norm.weight": "norm.weight",
            "lm_head.weight": "head.weight",
        },
    )
    inner = {"gate": "wi_0", "up": "wi_1"} if shape.gated_mlp else {"up": "wi"}
    blocks = {"attention": "SelfAttention", "cross_attention": "EncDecAttention",
              "feed_forward": "DenseReluDense"}  # fmt: skip
    shared = shape.num_heads // shape.num_kv_heads
    for stack, layers in (("encoder", shape.num_encoder_layers), ("decoder", shape.num_layers)):
        table = f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        theirs[table] = ours[f"{stack}_bias.table"].T
        parts = [part for part in blocks if stack == "decoder" or part != "cross_attention"]
        for number, part in enumerate(parts):
            block = f"{stack}.block.{{}}.layer.{number}."
            norm = "cross" if part == "cross_attention" else part
            names = {f"{block}layer_norm.weight": f"{stack}.{{}}.{norm}_norm.weight"}
            words = {"query": "q", "key": "k", "value": "v", "output": "o"}
            for name, word in (
                (inner | {"down": "wo"}) if part == "feed_forward" else words
            ).items():
                names[f"{block}{blocks[part]}.{word}.weight"] = f"{stack}.{{}}.{part}.{name}"
            theirs |= renamed(ours, names, layers)
    for name, weight in theirs.items():  # theirs has a key and a value for every query head
        if name.endswith((".k.weight", ".v.weight")):
            heads = weight.unflatten(0, (-1, shape.head_dim))
            theirs[name] = heads.repeat_interleave(shared, 0).flatten(0, 1)
    return theirs


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_an_encoder_decoder_gives_the_logits_and_gradients_of_transformers(
    shape: ModelShape,
) -> None:
    """The tables' above all: each of their numbers gathers the gradient of many scores."""
    ours = drawn(EncoderDecoder(blueprint(tiny_point(shape=shape, seq_length=FAR))))
    theirs = transformers_model(shape)
    theirs.load_state_dict(as_mt5(dict(ours.named_parameters()), shape))
    ids = torch.randint(0, 256, (2, 2, FAR), generator=torch.Generator().manual_seed(0))
    expected = theirs(input_ids=ids[:, 0], decoder_input_ids=ids[:, 1]).logits
    torch.testing.assert_close(ours.logits(ids), expected, atol=1e-4, rtol=0)
    if shape.num_kv_heads == shape.num_heads:  # else theirs has copies, each with a part of it
        batch = ids, ids[:, 1].roll(-1, 1)
        compare_gradients(ours, theirs, expected, batch, lambda w: as_mt5(w, shape))


def test_a_point_starts_from_the_weights_that_it_always_had() -> None:
    """Losses of points that were measured before are compared with those of new ones."""
    curve = reference_curve(tiny_point(measured_steps=4))
    assert curve.losses == pytest.approx([5.547306, 5.551678, 5.546059, 5.502577], abs=1e-5)
