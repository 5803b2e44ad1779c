"""Sentences beside recommendations: what they assume, and what the engine lacks."""

from collections.abc import Iterator
from typing import Any

from scaling.cluster.hardware import gpu_named
from scaling.layout.axes import AXES
from scaling.layout.engines import engine_refusals
from scaling.layout.layout import Layout, refusals
from scaling.layout.shapes import ModelShape
from scaling.predict.advise.recommend import usual_batch
from scaling.predict.read.inputs import OWN_FRAMEWORK
from scaling.predict.read.stacks import stack_of
from scaling.published.table import PublishedRow, nearest_rows

# Tokens of the largest step of a published dense training (Llama 3 405B, arXiv 2407.21783).
_LARGEST_STEP_TOKENS = 2**24
# A published model up to this many times larger or smaller is comparable.
_COMPARABLE = 1.5
_COUNTS = ("tp", "pp", "cp", "ep", "virtual_stages")


def remarks(
    *,
    model: str,
    shape: ModelShape,
    gpu: str,
    gpus: list[int],
    seq_length: int,
    global_batch_size: int | None,
    precision: str,
    framework: str,
    engine: str,
) -> Iterator[str]:
    """One sentence each, none where there is nothing to say.

    Args:
        model: its name.
        shape: the model.
        gpu: the catalogue's name of the cluster's GPU.
        gpus: GPU counts.
        seq_length: tokens of a sequence.
        global_batch_size: sequences of a step; None if the user gave none.
        precision: of the layouts.
        framework: whose stack is predicted.
        engine: of this project.
    """
    for count in gpus:
        batch = global_batch_size or usual_batch(seq_length, count)
        tokens = batch * seq_length
        step = f"{count} GPUs: {batch:,} sequences, {tokens / 1e6:.3g} M tokens a step"
        if global_batch_size is None:
            yield f"assumed: {step}, from the first on (no ramp); or give --global-batch-size"
        if tokens > _LARGEST_STEP_TOKENS:
            yield (
                f"warning: {step}: more than the {_LARGEST_STEP_TOKENS / 1e6:.3g} M that any "
                "published training took; more tokens a step are not worth as many steps"
            )
    stack = stack_of(framework, gpu_named(gpu))
    if not stack.name:
        yield f"framework {framework} is not known by name; {stack.source}"
    if framework == OWN_FRAMEWORK:
        yield from _lacking(model, shape, gpu, max(gpus), precision, engine)


def _lacking(
    model: str, shape: ModelShape, gpu: str, count: int, precision: str, engine: str
) -> Iterator[str]:
    """What the nearest published layout of a comparable model uses and the engine does not have."""
    rows = nearest_rows(
        gpu=gpu,
        active_params=shape.active_params,
        precision=precision,
        world_size=count,
        experts=shape.num_experts > 0,
        count=100,
        farthest=8.0,
    )
    for row in rows:
        if not 1 / _COMPARABLE < row.active_params / shape.active_params < _COMPARABLE:
            continue
        missing = sorted(set(_refused(shape, row, engine)))
        if missing:
            yield (
                f"engine {engine} lacks what the published layout nearest to {model} on {count} "
                f"GPUs uses ({row.layout} on {row.world_size} {row.gpu}, {row.source}): "
                f"{'; '.join(missing)}; --framework NeMo predicts such layouts"
            )
        return


def _refused(shape: ModelShape, row: PublishedRow, engine: str) -> Iterator[str]:
    """Why the engine cannot run the published layout, axis by axis."""
    counts: dict[str, Any] = {name: row.axes[name] for name in _COUNTS if name in AXES}
    if counts["pp"] == 1:
        counts["virtual_stages"] = 1
    ring = stack_of(row.framework, gpu_named(row.gpu)).ring
    layout = Layout(
        **counts,
        cp_style="ring" if counts["cp"] > 1 and ring else "all_to_all",
        dp=row.world_size // (counts["tp"] * counts["pp"] * counts["cp"]),
        pipeline_schedule="interleaved" if counts["virtual_stages"] > 1 else "1f1b",
        zero_stage=1,
        gradient_accumulation_steps=counts["pp"] * 2,
        seq_length=row.seq_length,
        engine=engine,
    )
    yield from refusals(shape, layout)
    yield from engine_refusals(shape, layout)
