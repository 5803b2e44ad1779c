"""A decoder as a DeepSpeed pipeline, layers assigned to stages by cost (layout/partition.py)."""

import itertools
from collections.abc import Sequence
from typing import Any

from deepspeed.pipe import DualPipeVModule, LayerSpec, PipelineModule, TiedLayerSpec
from torch import Tensor

from scaling.layout.partition import layers_of_stages
from scaling.train.model.blueprint import Blueprint
from scaling.train.model.decoder import Embedding, FinalNorm, Head, Layer


def build_pipeline(plan: Blueprint, **pipeline: Any) -> PipelineModule:
    """This rank's stage of the model; under DualPipeV both of its stages."""
    if plan.layout.pipeline_schedule == "dualpipev":
        # evenly: embedding and head slow two of the stages down, but these are on one rank
        pipeline["partition_method"] = "type:^Layer$"
        return DualPipeVModule(layers=_stages(plan), **pipeline)
    return BalancedPipeline(plan, **pipeline)


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
    """Stages of consecutive layers; embedding, norm and head join the first and the last one."""

    def __init__(self, plan: Blueprint, **pipeline: Any) -> None:
        self._bounds = stage_bounds(
            layers_of_stages(
                plan.shape,
                pp=plan.layout.pp,
                seq_length=plan.layout.seq_length,
                activation_checkpointing=plan.layout.activation_checkpointing,
            )
        )
        super().__init__(layers=_stages(plan), **pipeline)

    def _partition_layers(self, method: str) -> None:
        """Use `stage_bounds`: DeepSpeed's own methods ignore what the head costs."""
        assert method == "by_cost"
        self.parts = self._bounds
        stage = self._topo.get_coord(self.global_rank).pipe
        self._set_bounds(start=self.parts[stage], stop=self.parts[stage + 1])


def stage_bounds(layers_of_stages: Sequence[int]) -> list[int]:
    """Indices of the parts of `_stages` at which stages begin, and the number of parts."""
    *before, layers = itertools.accumulate(layers_of_stages)
    return [0, *(1 + count for count in before), layers + 3]
