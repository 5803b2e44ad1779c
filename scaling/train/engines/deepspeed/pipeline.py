"""A model in DeepSpeed's pipeline, layers dealt by what they cost (scaling/layout/partition.py).

Of an encoder-decoder two streams pass all stages, one after the other works. What travels between
two stages is one tensor: the encoder's stream, the decoder's and both position tables. So the
embedding and the tables live on the first stage alone, autograd carries their gradients home, and
nothing has to be kept equal between stages. DeepSpeed would send a tuple too, but run a backward
for each tensor in it.
"""

from typing import Any, NamedTuple

import torch
from deepspeed.pipe import DualPipeVModule, LayerSpec, PipelineModule, TiedLayerSpec
from torch import Tensor, nn

from scaling.layout.partition import layers_of_stages
from scaling.layout.shapes import T5_BUCKETS
from scaling.train.model.blueprint import Blueprint
from scaling.train.model.decoder import Embedding, FinalNorm, Head, Layer
from scaling.train.model.encoder_decoder import (
    DecoderLayer,
    EncoderLayer,
    embed_pair,
    position_bias,
)

# by the names of their classes, which DeepSpeed goes by
LAYERS = ("Layer", "PipedEncoderLayer", "PipedDecoderLayer")


def build_pipeline(plan: Blueprint, **pipeline: Any) -> PipelineModule:
    """This rank's stage of the model, of DualPipeV both of its stages."""
    if plan.layout.pipeline_schedule == "dualpipev":
        # evenly: look-up and head, which make two of the stages slower, are on one rank anyway
        pipeline["partition_method"] = "type:^Layer$"
        return DualPipeVModule(layers=_stages(plan), **pipeline)
    if plan.shape.family == "t5":
        return StreamsPipeline(plan, **pipeline)
    return DealtPipeline(plan, _stages(plan), **pipeline)


def _stages(plan: Blueprint) -> list[LayerSpec]:
    layers = [LayerSpec(Layer, plan, index) for index in range(plan.shape.num_layers)]
    if plan.shape.tied_embeddings:
        first: LayerSpec = TiedLayerSpec("embedding", Embedding, plan)
        last: LayerSpec = TiedLayerSpec("embedding", Embedding, plan, forward_fn=_tied_logits)
    else:
        first, last = LayerSpec(Embedding, plan), LayerSpec(Head, plan)
    return [first, *layers, LayerSpec(FinalNorm, plan), last]


def _tied_logits(embedding: Embedding, x: Tensor) -> Tensor:
    return embedding.tp.column_parallel(x, (embedding.weight, None))[0]


class DealtPipeline(PipelineModule):  # type: ignore[misc] # DeepSpeed has no types
    """Stages of consecutive layers; what is no layer rides along with the one before it."""

    def __init__(self, plan: Blueprint, layers: list[LayerSpec], **pipeline: Any) -> None:
        self._layers_of_stages = layers_of_stages(
            plan.shape,
            pp=plan.layout.pp,
            seq_length=plan.layout.seq_length,
            activation_checkpointing=plan.layout.activation_checkpointing,
        )
        super().__init__(layers=layers, **pipeline)
        self.plan = plan

    def _partition_layers(self, method: str) -> None:
        """DeepSpeed's own methods count layers or parameters, and weigh no head."""
        assert method == "dealt"
        self.parts = stage_bounds(
            [spec.typename.__name__.endswith("Layer") for spec in self._layer_specs],
            self._layers_of_stages,
        )
        stage = self._topo.get_coord(self.global_rank).pipe
        self._set_bounds(start=self.parts[stage], stop=self.parts[stage + 1])


def stage_bounds(is_layer: list[bool], layers_of_each: tuple[int, ...]) -> list[int]:
    """Where each stage begins among the parts of the model, and where the last one ends."""
    begins, dealt = [0], 0
    after = [index + 1 for index, layer in enumerate(is_layer) if layer]
    for layers in layers_of_each[:-1]:
        dealt += layers
        begin = after[dealt - 1]
        while begin < after[-1] and not is_layer[begin]:
            begin += 1
        begins.append(begin)
    return [*begins, len(is_layer)]


class Streams(NamedTuple):
    """What passes from layer to layer inside a stage; of it what leads, from stage to stage.

    `source` and `target` are [b, s', h], the position tables of both stacks [heads / tp, buckets].
    `memory` [b, s, h] is the encoder's output, entered into this stage's tp group once; biases are
    [1, n, s, s]. None where this stage needs none.
    """

    source: Tensor
    target: Tensor
    encoder_table: Tensor
    decoder_table: Tensor
    memory: Any = None
    encoder_bias: Any = None
    decoder_bias: Any = None


_SENT = 4  # the first of them


def t5_layer_specs(plan: Blueprint) -> list[LayerSpec]:
    """Every part of the model in the order in which the streams pass them."""
    return [
        LayerSpec(StreamsEmbedding, plan),
        *(LayerSpec(PipedEncoderLayer, plan, i) for i in range(plan.shape.num_encoder_layers)),
        LayerSpec(EncoderNorm, plan),
        *(LayerSpec(PipedDecoderLayer, plan, i) for i in range(plan.shape.num_layers)),
        LayerSpec(StreamsHead, plan),
    ]


class StreamsPipeline(DealtPipeline):
    """One stage: unpacks what the stage before sent, packs what the next one gets."""

    def __init__(self, plan: Blueprint, **pipeline: Any) -> None:
        super().__init__(plan, t5_layer_specs(plan), **pipeline)

    def forward(self, received: Tensor) -> Tensor:
        """Ids [b, 2, s] or what was packed -> logits [b, s, vocab / tp] or what is packed."""
        first, last = self.forward_funcs[0], self.forward_funcs[-1]
        begins = isinstance(first, StreamsEmbedding)
        streams = first.streams_of(received) if begins else unpack(received, self.plan)
        left = super().forward(self._with_what_layers_need(streams))
        result: Tensor = left if isinstance(last, StreamsHead) else pack(Streams(*left))
        return result

    def _with_what_layers_need(self, streams: Streams) -> Streams:
        """Made once a stage, for all of its layers."""
        held = {type(part) for part in self.forward_funcs}
        if PipedEncoderLayer in held:
            bias = position_bias(streams.encoder_table, self.plan, causal=False)
            streams = streams._replace(encoder_bias=bias)
        if PipedDecoderLayer in held:
            bias = position_bias(streams.decoder_table, self.plan, causal=True)
            streams = streams._replace(decoder_bias=bias)
            if EncoderNorm not in held:  # else it is that norm which makes the memory
                streams = streams._replace(memory=self.plan.tp.enter(streams.source))
        return streams


def pack(streams: Streams) -> Tensor:
    """Both streams and both tables, end to end."""
    return torch.cat([x.flatten() for x in streams[:_SENT]])


def unpack(flat: Tensor, plan: Blueprint) -> Streams:
    """What `pack` was given."""
    layout, heads = plan.layout, plan.shape.num_heads // plan.tp.size
    held = layout.seq_length // layout.cp
    if layout.sequence_parallel:
        held //= layout.tp
    stream = torch.Size((layout.micro_batch_size, held, plan.shape.hidden_size))
    shapes = [stream, stream, *2 * [torch.Size((heads, T5_BUCKETS))]]
    parts = flat.split([shape.numel() for shape in shapes])
    return Streams(*(part.view(shape) for part, shape in zip(parts, shapes, strict=True)))


class StreamsEmbedding(nn.Module):
    """The vocabulary and the tables, where both streams begin."""

    def __init__(self, plan: Blueprint) -> None:
        super().__init__()
        self.embedding = Embedding(plan)
        heads = plan.shape.num_heads
        self.encoder_table, self.decoder_table = (
            plan.sharded_weight(f"{stack}.position_bias", heads, T5_BUCKETS, dim=0)
            for stack in ("encoder", "decoder")
        )
        for table in (self.encoder_table, self.decoder_table):
            # A gradient that has only passed through is a part of the buffer into which DeepSpeed
            # receives: kept as it is, the next micro-batch would overwrite it.
            table.register_hook(torch.clone)

    def streams_of(self, ids: Tensor) -> Streams:
        """Ids [b, 2, s] -> both streams, and the tables that all stages are sent."""
        return Streams(*embed_pair(self.embedding, ids), self.encoder_table, self.decoder_table)

    def forward(self, streams: Streams) -> Streams:
        """Nothing is left to do: the stage itself has let the streams in."""
        return streams


class PipedEncoderLayer(nn.Module):
    """An encoder layer, which leaves the decoder's stream alone."""

    def __init__(self, plan: Blueprint, index: int) -> None:
        super().__init__()
        self.layer = EncoderLayer(plan, index)  # which is compiled as it is elsewhere

    def forward(self, passing: tuple[Tensor, ...]) -> Streams:
        """Streams -> Streams."""
        streams = Streams(*passing)
        return streams._replace(source=self.layer(streams.source, streams.encoder_bias))


class EncoderNorm(FinalNorm):
    """The norm after the encoder, and the memory for the decoder layers of the same stage."""

    def __init__(self, plan: Blueprint) -> None:
        super().__init__(plan)
        self.tp = plan.tp

    def forward(self, passing: tuple[Tensor, ...]) -> Streams:  # type: ignore[override]
        """Streams -> Streams."""
        streams = Streams(*passing)
        normed = super().forward(streams.source)
        return streams._replace(source=normed, memory=self.tp.enter(normed))


class PipedDecoderLayer(nn.Module):
    """A decoder layer, which leaves the encoder's output alone."""

    def __init__(self, plan: Blueprint, index: int) -> None:
        super().__init__()
        self.layer = DecoderLayer(plan, index)

    def forward(self, passing: tuple[Tensor, ...]) -> Streams:
        """Streams -> Streams."""
        streams = Streams(*passing)
        target = self.layer(streams.target, streams.memory, streams.decoder_bias)
        return streams._replace(target=target)


class StreamsHead(nn.Module):
    """The norm after the decoder and the head, where the encoder's stream ends."""

    def __init__(self, plan: Blueprint) -> None:
        super().__init__()
        self.norm, self.head = FinalNorm(plan), Head(plan)

    def forward(self, passing: tuple[Tensor, ...]) -> Tensor:
        """Streams -> logits [b, s, vocab / tp]."""
        logits: Tensor = self.head(self.norm(Streams(*passing).target))
        return logits
