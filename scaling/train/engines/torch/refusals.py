"""Layouts that the engine of PyTorch cannot run, one sentence each. Imports no torch."""

from collections.abc import Iterator
from importlib.metadata import version

from scaling.layout.layout import Layout
from scaling.layout.shapes import ModelShape

# Schedules that compute gradients of weights later than those of activations.
SPLIT_BACKWARD = ("zero_bubble", "zbv", "dualpipev")
_FIRST_CORRECT_TORCH = (2, 13)  # whose split backward has the right gradients


def layout_refusals(shape: ModelShape, layout: Layout) -> Iterator[str]:
    """Why PyTorch cannot run a layout that arithmetic allows: one sentence each."""
    if layout.precision == "fp16":
        yield "precision=fp16 needs a loss that is scaled against underflow; bf16 needs none"
    if layout.ep > 1 and layout.zero_shard_size is not None:
        yield (
            f"ep={layout.ep} with zero_shard_size={layout.zero_shard_size}: experts are sharded "
            "over all ranks that hold the same ones"
        )
    if layout.pp > 1:
        yield from _pipeline_refusals(shape, layout)


def _pipeline_refusals(shape: ModelShape, layout: Layout) -> Iterator[str]:
    schedule = layout.pipeline_schedule
    if shape.family == "t5":
        yield f"pp={layout.pp}: torch's stages send one stream, and a t5 has two (PyTorch)"
    if schedule == "1f1b" and layout.gradient_accumulation_steps < layout.pp:
        yield (
            f"pp={layout.pp} with gradient_accumulation_steps="
            f"{layout.gradient_accumulation_steps}: torch's 1f1b needs as many micro-batches as "
            "stages (PyTorch)"
        )
    if layout.zero_stage == 2:
        yield (
            f"zero_stage=2 with pp={layout.pp}: torch's pipelines reduce gradients once a step, as "
            "zero_stage=1 does (PyTorch)"
        )
    if schedule in SPLIT_BACKWARD:
        yield from (f"{says} (PyTorch)" for says in _split_backward_refusals(layout))
    if layout.fused_cross_entropy:
        yield "fused_cross_entropy joins head and loss, which torch's pipeline keeps apart"


def _split_backward_refusals(layout: Layout) -> Iterator[str]:
    schedule = f"with pipeline_schedule={layout.pipeline_schedule}"
    if layout.zero_stage == 3:
        yield (
            f"zero_stage=3 {schedule}: FSDP2 has freed the weights when the schedule comes to "
            "their gradients"
        )
    if layout.compile:
        yield f"compile {schedule}: compiled layers have no backward that could be split in two"
    if layout.activation_checkpointing == "full":
        yield (
            f"activation_checkpointing=full {schedule}: torch would recompute a layer once for its "
            "inputs' gradients and once for each of its weights'"
        )


def clipping_refusals(layout: Layout, gradient_clipping: float) -> Iterator[str]:
    """No refusals: the norm counts every weight once in every layout."""
    return iter(())


def missing_software(layout: Layout) -> Iterator[str]:
    """A newer PyTorch, for schedules that split the backward.

    Before 2.13 (torch/distributed/pipelining/_backward.py, stage_backward_weight) a gradient that
    reaches a node through several outputs is added up, or counted again through later nodes.
    """
    schedule, installed = layout.pipeline_schedule, version("torch")
    release = tuple(int(part) for part in installed.split(".")[:2])
    if schedule in SPLIT_BACKWARD and release < _FIRST_CORRECT_TORCH:
        yield (
            f"pipeline_schedule={schedule} needs torch >= 2.13, this is {installed}: older ones "
            "have wrong gradients where a backward is split"
        )


def windows(layout: Layout) -> tuple[float, ...]:
    """Elements of weights that it handles at once: none, FSDP2 works layer by layer."""
    return ()
