"""What a reader of recommendations must know beside them: assumptions, and what is left out."""

import dataclasses
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

# Larger steps than the largest published dense training took (Llama 3 405B, arXiv 2407.21783).
_LARGE_TOKENS = 2**24
# By how many times a published model may be larger or smaller and still be such a model.
_ALIKE = 1.5
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
        gpus: the GPU counts that were asked for.
        seq_length: tokens of a sequence.
        global_batch_size: sequences of a step as asked for; None: nobody did.
        precision: of the layouts.
        framework: whose stack is predicted.
        engine: of this project.
    """
    for count in gpus:
        batch = global_batch_size or usual_batch(seq_length, count)
        tokens = batch * seq_length
        said = f"{count} GPUs: {batch:,} sequences, {tokens / 1e6:.3g} M tokens a step"
        if global_batch_size is None:
            yield f"assumed: {said}, from the first on (no ramp); or give --global-batch-size"
        if tokens > _LARGE_TOKENS:
            yield (
                f"warning: {said}: more than the {_LARGE_TOKENS / 1e6:.3g} M that any published "
                "training took; more tokens a step are not worth as many steps"
            )
    if framework == OWN_FRAMEWORK:
        yield from _lacking(model, shape, gpu, max(gpus), precision, engine)


def _lacking(
    model: str, shape: ModelShape, gpu: str, count: int, precision: str, engine: str
) -> Iterator[str]:
    """What published layouts of such a model use and the engine does not have."""
    rows = nearest_rows(
        gpu=gpu,
        active_params=shape.active_params,
        precision=precision,
        world_size=count,
        count=100,
        farthest=8.0,
    )
    alike = [row for row in rows if 1 / _ALIKE < row.active_params / shape.active_params < _ALIKE]
    for row in alike[:1]:
        missing = sorted(set(_refused(shape, row, engine)))
        if missing:
            yield (
                f"engine {engine} lacks what the published layout nearest to {model} on {count} "
                f"GPUs uses ({row.layout} on {row.world_size} {row.gpu}, {row.source}): "
                f"{'; '.join(missing)}; --framework NeMo predicts such layouts"
            )


def _refused(shape: ModelShape, row: PublishedRow, engine: str) -> Iterator[str]:
    """Why the engine cannot run the published layout, axis by axis."""
    known: dict[str, Any] = {name: row.axes[name] for name in _COUNTS if name in AXES}
    chunks = known.get("virtual_stages", 1)
    ring = stack_of(row.framework, gpu_named(row.gpu)).ring
    layout = Layout(
        **known,
        cp_style="ring" if known["cp"] > 1 and ring else "all_to_all",
        dp=row.world_size // (known["tp"] * known["pp"] * known["cp"]),
        pipeline_schedule="interleaved" if chunks > 1 and known["pp"] > 1 else "1f1b",
        zero_stage=1,
        gradient_accumulation_steps=known["pp"] * 2,
        seq_length=row.seq_length,
        engine=engine,
    )
    if chunks > 1 and known["pp"] == 1:
        layout = dataclasses.replace(layout, virtual_stages=1)
    yield from refusals(shape, layout)
    yield from engine_refusals(shape, layout)
