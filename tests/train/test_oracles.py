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


SHAPES = {
    "mT5": TINY_T5,
    "a key for two heads": dataclasses.replace(TINY_T5, num_kv_heads=4),
    "no gate": dataclasses.replace(TINY_T5, gated_mlp=False),
}
FAR = 160  # tokens: beyond the last bucket's 128


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
        theirs |= _t5_layer(ours, shape, f"encoder.{i}.", f"encoder.block.{i}.layer.", names)
    for i in range(shape.num_layers):
        names = {
            "attention": "0.SelfAttention",
            "cross_attention": "1.EncDecAttention",
            "feed_forward": "2.DenseReluDense",
        }
        theirs |= _t5_layer(ours, shape, f"decoder.{i}.", f"decoder.block.{i}.layer.", names)
    return theirs


def _t5_layer(ours: Weights, shape: ModelShape, a: str, b: str, names: dict[str, str]) -> Weights:
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
