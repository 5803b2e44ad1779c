"""An encoder-decoder in a pipeline: two streams pass all stages, one after the other works.

What travels between two stages is one tensor: the encoder's stream, the decoder's and both position
tables. So the embedding and the tables live on the first stage alone, autograd carries their
gradients home, and nothing has to be kept equal between stages. DeepSpeed would send a tuple too,
but run a backward for each tensor in it.
"""

from typing import Any, NamedTuple

import torch
from deepspeed.pipe import LayerSpec
from torch import nn

from scaling.layout.shapes import T5_BUCKETS
from scaling.train.engines.deepspeed.pipeline import DealtPipeline
from scaling.train.model.blueprint import Blueprint
from scaling.train.model.decoder import Embedding, FinalNorm, Head
from scaling.train.model.encoder_decoder import DecoderLayer, EncoderLayer, pair_of
from scaling.train.model.relative_position import bias_of

LAYERS = ("PipedEncoderLayer", "PipedDecoderLayer")


class Streams(NamedTuple):
    """What passes from layer to layer inside a stage.

    `source` and `target` are [b, s', h]; `memory` [b, s, h] is the encoder's output, entered into
    this stage's tp group once; biases are [1, n, s, s]. None where this stage needs none.
    """

    source: torch.Tensor
    target: torch.Tensor
    memory: torch.Tensor | None = None
    encoder_bias: torch.Tensor | None = None
    decoder_bias: torch.Tensor | None = None


class Tables(NamedTuple):
    """The position tables of both stacks, [heads / tp, buckets] each."""

    encoder: torch.Tensor
    decoder: torch.Tensor


def parts_of(plan: Blueprint) -> list[LayerSpec]:
    """Every part of the model in the order in which the streams pass them."""
    return [
        LayerSpec(Inlet, plan),
        *(LayerSpec(PipedEncoderLayer, plan, i) for i in range(plan.shape.num_encoder_layers)),
        LayerSpec(EncoderNorm, plan),
        *(LayerSpec(PipedDecoderLayer, plan, i) for i in range(plan.shape.num_layers)),
        LayerSpec(Outlet, plan),
    ]


class StreamsPipeline(DealtPipeline):
    """One stage: unpacks what the stage before sent, packs what the next one gets."""

    def __init__(self, plan: Blueprint, **pipeline: Any) -> None:
        super().__init__(plan, parts_of(plan), **pipeline)

    def forward(self, received: torch.Tensor) -> torch.Tensor:
        """Ids [b, 2, s] or what was packed -> logits [b, s, vocab / tp] or what is packed."""
        parts = self.forward_funcs
        if isinstance(parts[0], Inlet):
            streams, tables = parts[0].streams_of(received), parts[0].tables()
        else:
            streams, tables = unpacked(received, self.plan)
        last = isinstance(parts[-1], Outlet)
        left = super().forward(self._with_what_layers_need(streams, tables))
        result: torch.Tensor = left if last else packed(Streams(*left), tables)
        return result

    def _with_what_layers_need(self, streams: Streams, tables: Tables) -> Streams:
        """Made once a stage, for all of its layers."""
        held = {type(part) for part in self.forward_funcs}
        if PipedEncoderLayer in held:
            bias = bias_of(tables.encoder, self.plan, causal=False)
            streams = streams._replace(encoder_bias=bias)
        if PipedDecoderLayer in held:
            bias = bias_of(tables.decoder, self.plan, causal=True)
            streams = streams._replace(decoder_bias=bias)
            if EncoderNorm not in held:  # else it is that norm which makes the memory
                streams = streams._replace(memory=self.plan.tp.enter(streams.source))
        return streams


def packed(streams: Streams, tables: Tables) -> torch.Tensor:
    """Both streams and both tables, end to end."""
    return torch.cat([x.flatten() for x in (streams.source, streams.target, *tables)])


def unpacked(flat: torch.Tensor, plan: Blueprint) -> tuple[Streams, Tables]:
    """What `packed` was given."""
    layout, heads = plan.layout, plan.shape.num_heads // plan.tp.size
    held = layout.seq_length // layout.cp
    if layout.sequence_parallel:
        held //= layout.tp
    stream = (layout.micro_batch_size, held, plan.shape.hidden_size)
    table = (heads, T5_BUCKETS)
    shapes = [torch.Size(shape) for shape in (stream, stream, table, table)]
    source, target, encoder, decoder = (
        part.view(shape)
        for part, shape in zip(flat.split([shape.numel() for shape in shapes]), shapes, strict=True)
    )
    return Streams(source, target), Tables(encoder, decoder)


class Inlet(nn.Module):
    """The vocabulary and the tables, where both streams begin."""

    def __init__(self, plan: Blueprint) -> None:
        super().__init__()
        self.embedding = Embedding(plan)
        heads = plan.shape.num_heads
        self.encoder_table, self.decoder_table = (
            plan.sharded(f"{stack}.position_bias", heads, T5_BUCKETS, dim=0)
            for stack in ("encoder", "decoder")
        )
        for table in (self.encoder_table, self.decoder_table):
            # A gradient that has only passed through is a part of the buffer into which DeepSpeed
            # receives: kept as it is, the next micro-batch would overwrite it.
            table.register_hook(torch.clone)

    def streams_of(self, ids: torch.Tensor) -> Streams:
        """Ids [b, 2, s] -> source and target."""
        return Streams(*pair_of(self.embedding, ids))

    def tables(self) -> Tables:
        """The tables that all stages are sent."""
        return Tables(self.encoder_table, self.decoder_table)

    def forward(self, streams: Streams) -> Streams:
        """Nothing is left to do: the stage itself has let the streams in."""
        return streams


class PipedEncoderLayer(nn.Module):
    """An encoder layer, which leaves the decoder's stream alone."""

    def __init__(self, plan: Blueprint, index: int) -> None:
        super().__init__()
        self.layer = EncoderLayer(plan, index)

    def forward(self, passing: tuple[torch.Tensor, ...]) -> Streams:
        """Streams -> Streams."""
        streams = Streams(*passing)
        return streams._replace(source=self.layer(streams.source, streams.encoder_bias))


class EncoderNorm(nn.Module):
    """The norm after the encoder, and the memory for the decoder layers of the same stage."""

    def __init__(self, plan: Blueprint) -> None:
        super().__init__()
        self.norm, self.tp = FinalNorm(plan), plan.tp

    def forward(self, passing: tuple[torch.Tensor, ...]) -> Streams:
        """Streams -> Streams."""
        streams = Streams(*passing)
        normed = self.norm(streams.source)
        return streams._replace(source=normed, memory=self.tp.enter(normed))


class PipedDecoderLayer(nn.Module):
    """A decoder layer, which leaves the encoder's output alone."""

    def __init__(self, plan: Blueprint, index: int) -> None:
        super().__init__()
        self.layer = DecoderLayer(plan, index)

    def forward(self, passing: tuple[torch.Tensor, ...]) -> Streams:
        """Streams -> Streams."""
        streams = Streams(*passing)
        target = self.layer(streams.target, streams.memory, streams.decoder_bias)
        return streams._replace(target=target)


class Outlet(nn.Module):
    """The norm after the decoder and the head, where the encoder's stream ends."""

    def __init__(self, plan: Blueprint) -> None:
        super().__init__()
        self.norm, self.head = FinalNorm(plan), Head(plan)

    def forward(self, passing: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """Streams -> logits [b, s, vocab / tp]."""
        logits: torch.Tensor = self.head(self.norm(Streams(*passing).target))
        return logits
