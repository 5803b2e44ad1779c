"""A model as a DeepSpeed pipeline, layers assigned to stages by cost (scaling/layout/partition.py).

An encoder-decoder sends two streams through all stages, and each stage works on one of them. Two
stages exchange one tensor: the encoder's stream, the decoder's stream and both position tables, end
to end. So the embedding and the tables live on the first stage alone, and autograd returns their
gradients. No weights have to be kept equal between stages. DeepSpeed could send a tuple, but would
then run one backward for each tensor in it.
"""

from typing import Any, NamedTuple

import torch
from deepspeed.pipe import DualPipeVModule, LayerSpec, PipelineModule, TiedLayerSpec
from torch import Tensor, nn

from scaling.layout.partition import layers_of_stages
from scaling.layout.shapes import T5_BUCKETS
from scaling.train.model.blueprint import Blueprint, activation_shape
from scaling.train.model.decoder import Embedding, FinalNorm, Head, Layer
from scaling.train.model.encoder_decoder import (
    DecoderLayer,
    EncoderLayer,
    embed_pair,
    position_bias,
)

# names of the classes that DeepSpeed may checkpoint
LAYER_CLASSES = ("Layer", "PipedEncoderLayer", "PipedDecoderLayer")


def build_pipeline(plan: Blueprint, **pipeline: Any) -> PipelineModule:
    """This rank's stage of the model; under DualPipeV both of its stages."""
    if plan.layout.pipeline_schedule == "dualpipev":
        # evenly: embedding and head slow two of the stages down, but these are on one rank
        pipeline["partition_method"] = "type:^Layer$"
        return DualPipeVModule(layers=_stages(plan), **pipeline)
    if plan.shape.family == "t5":
        return StreamsPipeline(plan, **pipeline)
    return BalancedPipeline(plan, _stages(plan), **pipeline)


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


class BalancedPipeline(PipelineModule):  # type: ignore[misc] # DeepSpeed has no types
    """Stages of consecutive layers; a part that is no layer joins the layer before it."""

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
        """Use `stage_bounds`: DeepSpeed's own methods ignore what the head costs."""
        assert method == "by_cost"
        self.parts = stage_bounds(
            [spec.typename.__name__.endswith("Layer") for spec in self._layer_specs],
            self._layers_of_stages,
        )
        stage = self._topo.get_coord(self.global_rank).pipe
        self._set_bounds(start=self.parts[stage], stop=self.parts[stage + 1])


def stage_bounds(is_layer: list[bool], layers_of_stages: tuple[int, ...]) -> list[int]:
    """Indices of the model's parts at which stages begin, and the number of parts at the end."""
    begins, layers_before = [0], 0
    after_layer = [index + 1 for index, layer in enumerate(is_layer) if layer]
    for layers in layers_of_stages[:-1]:
        layers_before += layers
        begin = after_layer[layers_before - 1]
        while begin < after_layer[-1] and not is_layer[begin]:
            begin += 1
        begins.append(begin)
    return [*begins, len(is_layer)]


class Streams(NamedTuple):
    """The tensors between the layers of a stage; the first four fields pass between stages too.

    `source` and `target` are [b, s', h], the position tables of both stacks [heads / tp, buckets].
    `memory` [b, s, h] is the encoder's output after `tp.enter`, once per stage; biases are
    [1, n, s, s]. The last three are None where this stage does not need them.
    """

    source: Tensor
    target: Tensor
    encoder_table: Tensor
    decoder_table: Tensor
    memory: Any = None
    encoder_bias: Any = None
    decoder_bias: Any = None


_SENT = 4  # fields that pass between stages


def t5_layer_specs(plan: Blueprint) -> list[LayerSpec]:
    """The parts of an encoder-decoder in the order in which the streams pass them."""
    return [
        LayerSpec(StreamsEmbedding, plan),
        *(LayerSpec(PipedEncoderLayer, plan, i) for i in range(plan.shape.num_encoder_layers)),
        LayerSpec(EncoderNorm, plan),
        *(LayerSpec(PipedDecoderLayer, plan, i) for i in range(plan.shape.num_layers)),
        LayerSpec(StreamsHead, plan),
    ]


class StreamsPipeline(BalancedPipeline):
    """One stage: unpacks what the previous stage sent and packs what the next one gets."""

    def __init__(self, plan: Blueprint, **pipeline: Any) -> None:
        super().__init__(plan, t5_layer_specs(plan), **pipeline)

    def forward(self, received: Tensor) -> Tensor:
        """Ids [b, 2, s] or packed streams -> logits [b, s, vocab / tp] or packed streams."""
        first, last = self.forward_funcs[0], self.forward_funcs[-1]
        if isinstance(first, StreamsEmbedding):
            streams = first.embed(received)
        else:
            streams = unpack(received, self.plan)
        output = super().forward(self._with_biases_and_memory(streams))
        result: Tensor = output if isinstance(last, StreamsHead) else pack(Streams(*output))
        return result

    def _with_biases_and_memory(self, streams: Streams) -> Streams:
        """Add what all layers of this stage share, computed once."""
        held = {type(part) for part in self.forward_funcs}
        if PipedEncoderLayer in held:
            bias = position_bias(streams.encoder_table, self.plan, causal=False)
            streams = streams._replace(encoder_bias=bias)
        if PipedDecoderLayer in held:
            bias = position_bias(streams.decoder_table, self.plan, causal=True)
            streams = streams._replace(decoder_bias=bias)
            if EncoderNorm not in held:  # otherwise that norm sets the memory
                streams = streams._replace(memory=self.plan.tp.enter(streams.source))
        return streams


def pack(streams: Streams) -> Tensor:
    """Both streams and both tables in one flat tensor."""
    return torch.cat([x.flatten() for x in streams[:_SENT]])


def unpack(flat: Tensor, plan: Blueprint) -> Streams:
    """The streams and tables that `pack` was given."""
    stream = torch.Size(activation_shape(plan.shape, plan.layout))
    table = torch.Size((plan.shape.num_heads // plan.tp.size, T5_BUCKETS))
    shapes = [stream, stream, table, table]
    parts = flat.split([shape.numel() for shape in shapes])
    return Streams(*(part.view(shape) for part, shape in zip(parts, shapes, strict=True)))


class StreamsEmbedding(nn.Module):
    """The embedding and the position tables, where both streams begin."""

    def __init__(self, plan: Blueprint) -> None:
        super().__init__()
        self.embedding = Embedding(plan)
        heads = plan.shape.num_heads
        self.encoder_table, self.decoder_table = (
            plan.sharded_weight(f"{stack}.position_bias", heads, T5_BUCKETS, dim=0)
            for stack in ("encoder", "decoder")
        )
        for table in (self.encoder_table, self.decoder_table):
            # The gradient that arrives is a view of DeepSpeed's receive buffer, which the next
            # micro-batch overwrites, so keep a copy.
            table.register_hook(torch.clone)

    def embed(self, ids: Tensor) -> Streams:
        """Ids [b, 2, s] -> both streams, and the tables that are sent to all stages."""
        return Streams(*embed_pair(self.embedding, ids), self.encoder_table, self.decoder_table)

    def forward(self, streams: Streams) -> Streams:
        """Nothing to do: the stage has called `embed`."""
        return streams


class PipedEncoderLayer(nn.Module):
    """An encoder layer, which leaves the decoder's stream alone."""

    def __init__(self, plan: Blueprint, index: int) -> None:
        super().__init__()
        self.layer = EncoderLayer(plan, index)

    def forward(self, fields: tuple[Tensor, ...]) -> Streams:
        """Streams -> Streams."""
        streams = Streams(*fields)
        return streams._replace(source=self.layer(streams.source, streams.encoder_bias))


class EncoderNorm(FinalNorm):
    """The norm after the encoder; sets the memory for decoder layers of the same stage."""

    def __init__(self, plan: Blueprint) -> None:
        super().__init__(plan)
        self.tp = plan.tp

    def forward(self, fields: tuple[Tensor, ...]) -> Streams:  # type: ignore[override]
        """Streams -> Streams."""
        streams = Streams(*fields)
        normed = super().forward(streams.source)
        return streams._replace(source=normed, memory=self.tp.enter(normed))


class PipedDecoderLayer(nn.Module):
    """A decoder layer, which leaves the encoder's output alone."""

    def __init__(self, plan: Blueprint, index: int) -> None:
        super().__init__()
        self.layer = DecoderLayer(plan, index)

    def forward(self, fields: tuple[Tensor, ...]) -> Streams:
        """Streams -> Streams."""
        streams = Streams(*fields)
        target = self.layer(streams.target, streams.memory, streams.decoder_bias)
        return streams._replace(target=target)


class StreamsHead(nn.Module):
    """The norm after the decoder and the head, where the encoder's stream ends."""

    def __init__(self, plan: Blueprint) -> None:
        super().__init__()
        self.norm, self.head = FinalNorm(plan), Head(plan)

    def forward(self, fields: tuple[Tensor, ...]) -> Tensor:
        """Streams -> logits [b, s, vocab / tp]."""
        logits: Tensor = self.head(self.norm(Streams(*fields).target))
        return logits
