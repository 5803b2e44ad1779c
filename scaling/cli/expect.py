"""`scaling expect`: whether a measured number is normal for a model, GPUs and a layout."""

import dataclasses
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scaling.cli.command import PROGRAMS, axis_values, point_of_axes
from scaling.cli.options import AsJson, print_json
from scaling.cli.prediction import CalibrationFile, print_assumptions
from scaling.errors import InputError, counted, printable, shortened
from scaling.layout.names import name_of

if TYPE_CHECKING:
    from scaling.predict.advise.expect import Expectation
    from scaling.study.point import Point

_WIDTH = 80
_SEQ_LENGTH = 4096
Ranks = Annotated[int | None, typer.Option(min=1, max=10_000_000, help="Ranks.")]


def expect(
    model: Annotated[
        str | None,
        typer.Option(help="A model of config/models.yaml, a config.json, its folder, a hub name."),
    ] = None,
    cluster: Annotated[
        str | None, typer.Option(help="A cluster of config/clusters.yaml, or a GPU.")
    ] = None,
    gpus: Ranks = None,
    tp: Ranks = None,
    pp: Ranks = None,
    cp: Ranks = None,
    ep: Ranks = None,
    zero_stage: Annotated[int | None, typer.Option(min=0, max=3)] = None,
    micro_batch_size: Annotated[
        int | None, typer.Option(min=1, max=10_000_000, help="Sequences.")
    ] = None,
    activation_checkpointing: Annotated[
        str | None, typer.Option(help="none, selective or full.")
    ] = None,
    precision: Annotated[str | None, typer.Option(help="fp32, bf16, fp16 or fp8.")] = None,
    engine: Annotated[str | None, typer.Option(help=f"What trains: {', '.join(PROGRAMS)}.")] = None,
    layout: Annotated[
        list[str] | None,
        typer.Option(metavar="AXIS=VALUE", help="Any other axis: fused_norm=true,compile=true."),
    ] = None,
    seq_length: Annotated[
        int | None,
        typer.Option(min=1, max=10_000_000, help=f"Tokens per sequence; default: {_SEQ_LENGTH}."),
    ] = None,
    global_batch_size: Annotated[
        int | None,
        typer.Option(min=1, max=10_000_000, help="Sequences per step; default: 4 to 16 M tokens."),
    ] = None,
    gradient_accumulation_steps: Annotated[
        int | None, typer.Option(min=1, max=10_000_000, help="Instead of --global-batch-size.")
    ] = None,
    tokens_per_s_per_gpu: Annotated[
        float | None, typer.Option(min=1e-6, max=1e12, help="The number in question.")
    ] = None,
    calibration: CalibrationFile = None,
    log: Annotated[
        Path | None, typer.Option(help="A trainer's log: takes number and layout from it.")
    ] = None,
    trainer: Annotated[
        str | None, typer.Option(help="With --log: megatron, torchtitan, nemo, hf ...")
    ] = None,
    column: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="With --log: what the log does not say."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say whether a throughput is normal: what is expected, by parts, and what to look at first."""
    from scaling.predict.advise.expect import expect as expected
    from scaling.predict.read.calibration import read_calibration
    from scaling.predict.read.clusters import site_clusters

    parameters = read_calibration(calibration) if calibration else None
    said: dict[str, Any] = {
        "tp": tp, "pp": pp, "cp": cp, "ep": ep, "zero_stage": zero_stage,
        "micro_batch_size": micro_batch_size, "activation_checkpointing": activation_checkpointing,
        "precision": precision, "engine": engine,
    }  # fmt: skip
    axes = [f"{name}={value}" for name, value in said.items() if value is not None]
    axes += layout or []
    work: dict[str, Any] = {
        "model": model, "cluster": cluster, "world_size": gpus,
        "global_batch_size": global_batch_size, "seq_length": seq_length,
    }  # fmt: skip
    row: dict[str, Any] = {}
    if log is not None:
        row = _row_of(log, trainer, tokens_per_s_per_gpu, work, column or [])
        axes = [*_axes_of(row), *axes]
        work = {name: row[name] for name in work}
    elif trainer is not None or column:
        raise InputError("--trainer and --column say how to read a --log; none is given")
    point = _point(",".join(axes), work, gradient_accumulation_steps)
    if row:
        _check_shape(log, row, point)
        tokens_per_s_per_gpu = _rate_of(row, point)
    if tokens_per_s_per_gpu is None:
        raise InputError("--tokens-per-s-per-gpu: give the number in question, or --log")
    told = expected(
        model=point.model,
        shape=point.shape,
        cluster=point.cluster,
        clusters=site_clusters(),
        layout=point.layout,
        tokens_per_s_per_gpu=tokens_per_s_per_gpu,
        calibration=parameters,
        framework=None if "engine" in row else row.get("framework"),
        peak_memory_bytes=peak if isinstance(peak := row.get("peak_memory_bytes"), int) else None,
    )
    if log is None and global_batch_size is None and gradient_accumulation_steps is None:
        batch = point.layout.global_batch_size
        tokens = f"{batch * point.layout.seq_length / 1e6:.3g} M tokens"
        typer.echo(f"assumed: {batch:,} sequences, {tokens} a step", err=True)
    if as_json:
        print_json(_record_of(told, point))
    else:
        print_assumptions(told.assumptions)
        for line in screen(told, point):
            typer.echo(printable(line))


def _row_of(
    log: Path,
    trainer: str | None,
    number: float | None,
    work: Mapping[str, Any],
    columns: list[str],
) -> dict[str, Any]:
    from scaling.cli.trainer_log import row_of_log

    if trainer is None:
        raise InputError(f"--log {log}: give --trainer, the program that wrote it")
    if number is not None:
        raise InputError(f"--tokens-per-s-per-gpu {number:g}: --log {log} tells the number")
    told = [f"{name}={value}" for name, value in work.items() if value is not None]
    return row_of_log(log, trainer, [*columns, *told])


def _axes_of(row: Mapping[str, Any]) -> list[str]:
    """The axes that a row states, as `tp=2`."""
    from scaling.layout.axes import AXES

    stated = {name: row[name] for name in AXES if name in row}
    return [f"{name}={str(value).lower()}" for name, value in stated.items()]


def _check_shape(log: Path | None, row: Mapping[str, Any], point: "Point") -> None:
    """Refuse a log of another model.

    Raises:
        InputError: it states another size of the shape.
    """
    for name in ("num_layers", "hidden_size", "num_heads"):
        ours = getattr(point.shape, name)
        if name in row and row[name] != ours:
            raise InputError(
                f"{log}: says {name}={shortened(row[name])}, but {point.model} has {ours}"
            )


def _rate_of(row: Mapping[str, Any], point: "Point") -> float:
    """Tokens per second of one GPU: encoder-decoders count both sides, as everywhere here."""
    sides = 2 if point.shape.num_encoder_layers else 1
    tokens = point.layout.global_batch_size * point.layout.seq_length * sides
    return tokens / float(row["step_time_s"]) / point.world_size


def _point(axes: str, work: Mapping[str, Any], accumulation: int | None) -> "Point":
    """The point in question; a batch that nobody states is assumed.

    Raises:
        InputError: something is missing or wrong.
    """
    from scaling.layout.axes import DEFAULTS
    from scaling.layout.layout import replica_size
    from scaling.predict.advise.recommend import usual_batch

    for name, option in (("model", "--model"), ("cluster", "--cluster"), ("world_size", "--gpus")):
        if work[name] is None:
            raise InputError(f"{option}: missing; say the model, the cluster and the GPUs")
    batch, gpus = work["global_batch_size"], int(work["world_size"])
    seq_length = int(work["seq_length"] or _SEQ_LENGTH)
    if batch is None:
        values = DEFAULTS | axis_values(axes)
        once = max(gpus // replica_size(values), 1) * values["micro_batch_size"]
        if accumulation is None:  # whole rounds of the pipeline, which interleaving needs
            rounds = round(usual_batch(seq_length, gpus) / (once * values["pp"]))
            accumulation = max(rounds, 1) * values["pp"]
        batch = once * accumulation
    elif accumulation is not None:
        raise InputError("--gradient-accumulation-steps: --global-batch-size is given; leave one")
    return point_of_axes(
        axes, str(work["model"]), gpus, int(batch), seq_length, str(work["cluster"])
    )


def screen(told: "Expectation", point: "Point") -> list[str]:
    """The answer, of lines of at most 80 characters."""
    batch = f"{told.layout.global_batch_size:,} x {told.layout.seq_length:,} tokens a step"
    head = f"{point.model} on {counted(point.world_size, 'GPU')} of {point.cluster}: "
    return [
        *_wrapped(f"{head}{name_of(told.layout)}, {batch}"),
        *_wrapped(f"{'given':<10}{_rate(told.given, told.given_step_time_s, told.given_mfu)}"),
        *_wrapped(f"{'expected':<10}{_rate(told.expected, told.step_time_s, told.mfu)}"),
        *_wrapped(f"{'interval':<10}{told.low:,.0f} to {told.high:,.0f} tokens/s per GPU, 80 %"),
        *_wrapped(f"{'from':<10}{source_words(told)}"),
        *_wrapped(f"{'so':<10}{verdict(told)}"),
        "",
        *_part_lines(told),
        "",
        *_published_lines(told),
        "",
        *_faster_lines(told),
        "",
        "look first at",
        *(line for look in told.looks for line in _wrapped(f"- {look}", "  ")),
    ]


def seconds(value: float) -> str:
    """Seconds with three digits, or whole."""
    return f"{value:,.0f}" if value >= 999.5 else f"{value:.3g}"


def _rate(tokens: float, step_s: float, mfu: float) -> str:
    return f"{tokens:,.0f} tokens/s per GPU, {seconds(step_s)} s a step, {100 * mfu:.1f} % MFU"


def source_words(told: "Expectation") -> str:
    """The expectation's source for people."""
    from scaling.predict.advise.expect import SOURCES

    words = SOURCES[told.source]
    if not told.rows_of_yours:
        return words
    return f"{words} ({told.rows_of_yours:,} timed, {told.parameters_from})"


def verdict(told: "Expectation") -> str:
    """The given number's place in what is expected, as a sentence."""
    faster = told.percentile > 0.5
    share = told.percentile if faster else 1 - told.percentile
    often = "more than 99" if share > 0.995 else f"{100 * share:.0f}"
    return (
        f"{told.place} the interval: {'faster' if faster else 'slower'} than {often} % of what "
        "is expected"
    )


def _part_lines(told: "Expectation") -> list[str]:
    lines = ["the expected step by parts"]
    for part, taken in told.parts.items():
        share = taken / told.step_time_s
        if share >= 0.005:
            lines.append(f"  {part:<24}{seconds(taken):>9} s{100 * share:>6.0f} %")
    if told.gap_s > 0:
        lines.append(f"  {'the given step has more':<24}{seconds(told.gap_s):>9} s")
    return lines


def _published_lines(told: "Expectation") -> list[str]:
    if not told.published:
        return ["published rows: none of such a model on this GPU"]
    lines = [
        "published rows nearest to it, in model TFLOP/s of one GPU; given: "
        f"{told.given_model_flop_per_s / 1e12:,.0f}"
    ]
    for row in told.published:
        text = (
            f"{row.model_flop_per_s_per_gpu / 1e12:.0f}: {row.model}, {row.world_size} GPUs, "
            f"{row.layout}, {row.precision}, {row.tokens_per_s_per_gpu:,.0f} tokens/s per GPU "
            f"({row.source}, {row.release})"
        )
        lines += _wrapped(text, "  ")
    return lines


def _faster_lines(told: "Expectation") -> list[str]:
    if not told.faster:
        return _wrapped(f"layouts that should be faster: {told.why_none_faster}")
    lines = ["layouts that should be faster than this one, both as expected"]
    for one in told.faster:
        memory = f"{100 * (1 - one.found.memory_margin):.0f} % of memory"
        text = (
            f"{name_of(one.found.layout)}: {100 * one.gain:+.0f} % tokens/s "
            f"({100 * one.chance:.0f} % likely), {memory}"
        )
        lines += _wrapped(text, "  ")
    return lines


def _wrapped(text: str, indent: str = "") -> list[str]:
    return textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=indent,
        subsequent_indent=f"{indent}  ",
        break_on_hyphens=False,
    )


def _record_of(told: "Expectation", point: "Point") -> dict[str, Any]:
    """The facts of the screen, for scripts."""
    from scaling.predict.advise.recommend import record_of
    from scaling.study.ids import stored_fields

    record = {field.name: getattr(told, field.name) for field in dataclasses.fields(told)}
    return record | {
        "model": point.model,
        "cluster": point.cluster,
        "gpus": point.world_size,
        "layout": stored_fields(told.layout),
        "label": told.layout.label,
        "place": told.place,
        "verdict": verdict(told),
        "source_words": source_words(told),
        "parts": dict(told.parts),
        "published": [{"label": "published", **dataclasses.asdict(row)} for row in told.published],
        "faster": [
            {**record_of(one.found), "gain": one.gain, "chance": one.chance} for one in told.faster
        ],
        "assumptions": list(told.assumptions),
    }
