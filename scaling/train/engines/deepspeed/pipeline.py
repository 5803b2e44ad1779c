"""DeepSpeed's pipeline with layers dealt by what they cost (scaling/layout/partition.py)."""

from typing import Any

from deepspeed.pipe import LayerSpec, PipelineModule

from scaling.layout.partition import layers_of_stages
from scaling.train.model.blueprint import Blueprint


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
        self.parts = bounds(
            [spec.typename.__name__.endswith("Layer") for spec in self._layer_specs],
            self._layers_of_stages,
        )
        stage = self._topo.get_coord(self.global_rank).pipe
        self._set_bounds(start=self.parts[stage], stop=self.parts[stage + 1])


def bounds(is_layer: list[bool], layers_of_each: tuple[int, ...]) -> list[int]:
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
