"""With the same weights our decoders give the logits and gradients of transformers' models.

transformers is here for this only. Its GPT-2 keeps matrices transposed and query, key and value in
one.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch

from scaling.layout.shapes import ModelShape
from scaling.train.model.decoder import Decoder
from tests.points import TINY, TINY_GPT, tiny_point
from tests.train.reference import reference_curve
from tests.train.test_model import blueprint

IDS = torch.randint(0, 256, (2, 32), generator=torch.Generator().manual_seed(0))
Weights = dict[str, torch.Tensor]


def decoder(shape: ModelShape, **layout: Any) -> Decoder:
    """Ours, with every weight drawn: a bias of 0 or a scale of 1 would hide where it goes."""
    model = Decoder(blueprint(tiny_point(shape=shape, **layout)))
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


def as_llama(ours: Weights, shape: ModelShape) -> Weights:
    theirs = {
        "model.embed_tokens.weight": ours["embedding.weight"],
        "model.norm.weight": ours["norm.weight"],
        "lm_head.weight": ours.get("head.weight", ours["embedding.weight"]),
    }
    for i in range(shape.num_layers):
        a, b = f"layers.{i}.", f"model.layers.{i}."
        theirs |= {
            f"{b}self_attn.q_proj.weight": ours[f"{a}attention.query"],
            f"{b}self_attn.k_proj.weight": ours[f"{a}attention.key"],
            f"{b}self_attn.v_proj.weight": ours[f"{a}attention.value"],
            f"{b}self_attn.o_proj.weight": ours[f"{a}attention.output"],
            f"{b}mlp.gate_proj.weight": ours[f"{a}feed_forward.gate"],
            f"{b}mlp.up_proj.weight": ours[f"{a}feed_forward.up"],
            f"{b}mlp.down_proj.weight": ours[f"{a}feed_forward.down"],
            f"{b}input_layernorm.weight": ours[f"{a}attention_norm.weight"],
            f"{b}post_attention_layernorm.weight": ours[f"{a}feed_forward_norm.weight"],
        }
    return theirs


def as_gpt2(ours: Weights, shape: ModelShape) -> Weights:
    theirs = {
        "transformer.wte.weight": ours["embedding.weight"],
        "transformer.wpe.weight": ours["embedding.positions"],
        "transformer.ln_f.weight": ours["norm.weight"],
        "transformer.ln_f.bias": ours["norm.bias"],
        "lm_head.weight": ours.get("head.weight", ours["embedding.weight"]),
    }
    parts = ("query", "key", "value")
    for i in range(shape.num_layers):
        a, b = f"layers.{i}.", f"transformer.h.{i}."
        joined = [ours[f"{a}attention.{part}"] for part in parts]
        biases = [ours[f"{a}attention.{part}_bias"] for part in parts]
        theirs |= {
            f"{b}attn.c_attn.weight": torch.cat(joined).T,
            f"{b}attn.c_attn.bias": torch.cat(biases),
            f"{b}attn.c_proj.weight": ours[f"{a}attention.output"].T,
            f"{b}attn.c_proj.bias": ours[f"{a}attention_bias"],
            f"{b}mlp.c_fc.weight": ours[f"{a}feed_forward.up"].T,
            f"{b}mlp.c_fc.bias": ours[f"{a}feed_forward.up_bias"],
            f"{b}mlp.c_proj.weight": ours[f"{a}feed_forward.down"].T,
            f"{b}mlp.c_proj.bias": ours[f"{a}feed_forward_bias"],
        }
        for norm, theirs_named in (("attention_norm", "ln_1"), ("feed_forward_norm", "ln_2")):
            theirs[f"{b}{theirs_named}.weight"] = ours[f"{a}{norm}.weight"]
            theirs[f"{b}{theirs_named}.bias"] = ours[f"{a}{norm}.bias"]
    return theirs


def compare(shape: ModelShape, theirs: Any, named: Callable[..., Weights]) -> None:
    """Logits, and what the loss of the next tokens asks of each weight, in transformers' names."""
    ours, labels = decoder(shape), IDS.roll(-1, 1)
    theirs.load_state_dict(named(dict(ours.named_parameters()), shape))
    expected = theirs(IDS).logits
    torch.testing.assert_close(logits_of(ours), expected, atol=1e-4, rtol=0)
    ours(IDS, labels).backward()
    torch.nn.functional.cross_entropy(expected.flatten(0, 1), labels.flatten()).backward()
    found = named({name: w.grad for name, w in ours.named_parameters()}, shape)
    for name, weight in theirs.named_parameters():
        torch.testing.assert_close(found[name], weight.grad, atol=1e-6, rtol=1e-3)


@pytest.mark.parametrize("tied", [False, True])
def test_a_llama_gives_the_logits_and_gradients_of_transformers(tied: bool) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM  # late: seconds, of every collection

    shape = dataclasses.replace(TINY, tied_embeddings=tied)
    theirs = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=shape.vocab_size,
            hidden_size=shape.hidden_size,
            intermediate_size=shape.ffn_hidden_size,
            num_hidden_layers=shape.num_layers,
            num_attention_heads=shape.num_heads,
            num_key_value_heads=shape.num_kv_heads,
            rms_norm_eps=1e-5,
            tie_word_embeddings=tied,
        )
    )
    compare(shape, theirs, as_llama)


@pytest.mark.parametrize("tied", [False, True])
def test_a_gpt_gives_the_logits_and_gradients_of_transformers(tied: bool) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    shape = dataclasses.replace(TINY_GPT, tied_embeddings=tied)
    theirs = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=shape.vocab_size,
            n_positions=shape.max_positions,
            n_embd=shape.hidden_size,
            n_layer=shape.num_layers,
            n_head=shape.num_heads,
            n_inner=shape.ffn_hidden_size,
            activation_function="gelu",
            tie_word_embeddings=tied,
        )
    ).eval()  # GPT-2 trains with dropout
    compare(shape, theirs, as_gpt2)


def test_a_point_starts_from_the_weights_that_it_always_had() -> None:
    """Losses of points that were measured before are compared with those of new ones."""
    curve = reference_curve(tiny_point(measured_steps=4))
    assert curve.losses == pytest.approx([5.547306, 5.551678, 5.546059, 5.502577], abs=1e-5)
