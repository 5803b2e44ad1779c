"""`scaling expect`: whether a measured number is normal for a model, GPUs and a layout."""

import dataclasses
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scaling.cli.layouts import (
    CLUSTER_HELP,
    MODEL_HELP,
    PROGRAM_HELP,
    SEQ_LENGTH,
    axis_values,
    layout_asked,
    pairs_of,
)
from scaling.cli.options import (
    AsJson,
    CalibrationFile,
    count,
    opt,
    print_assumptions,
    print_json,
    say_batch,
)
from scaling.errors import InputError, counted, printable, shortened
from scaling.layout.axes import AXES, DEFAULTS
from scaling.layout.layout import replica_size
from scaling.layout.names import layout_name, name_of

if TYPE_CHECKING:
    from scaling.layout.layout import Layout

_WIDTH = 80


def expect(
    model: Annotated[str | None, opt(MODEL_HELP)] = None,
    cluster: Annotated[str | None, opt(CLUSTER_HELP)] = None,
    gpus: Annotated[int | None, count("Ranks.")] = None,
    tp: Annotated[int | None, count("Ranks.")] = None,
    pp: Annotated[int | None, count("Ranks.")] = None,
    cp: Annotated[int | None, count("Ranks.")] = None,
    ep: Annotated[int | None, count("Ranks.")] = None,
    zero_stage: Annotated[int | None, typer.Option(min=0, max=3)] = None,
    micro_batch_size: Annotated[int | None, count("Sequences.")] = None,
    activation_checkpointing: Annotated[str | None, opt("none, selective or full.")] = None,
    precision: Annotated[str | None, opt("fp32, bf16, fp16 or fp8.")] = None,
    engine: Annotated[str | None, opt(f"What trains: {PROGRAM_HELP}")] = None,
    layout: Annotated[
        list[str] | None, opt("Other axes: compile=true.", metavar="AXIS=VALUE")
    ] = None,
    seq_length: Annotated[int | None, count(f"Tokens per sequence; default: {SEQ_LENGTH}.")] = None,
    global_batch_size: Annotated[int | None, count("Sequences; default: 4 to 16 M tokens.")] = None,
    gradient_accumulation_steps: Annotated[
        int | None, count("Instead of --global-batch-size.")
    ] = None,
    tokens_per_s_per_gpu: Annotated[
        float | None, opt("The number to judge.", min=1e-6, max=1e12)
    ] = None,
    calibration: CalibrationFile = None,
    log: Annotated[Path | None, opt("A trainer's log: takes number and layout from it.")] = None,
    trainer: Annotated[str | None, opt("With --log: megatron, torchtitan, nemo, hf ...")] = None,
    column: Annotated[
        list[str] | None, opt("What a --log does not say.", metavar="NAME=VALUE")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say whether a throughput is normal: what is expected, by parts, and what to look at first."""
    from scaling.cli.trainer_log import row_of_log
    from scaling.predict.advise.expectation import expect as expected
    from scaling.predict.read.calibration import read_calibration

    parameters = read_calibration(calibration) if calibration else None
    work: dict[str, Any] = {
        "model": model, "cluster": cluster, "world_size": gpus,
        "global_batch_size": global_batch_size, "seq_length": seq_length,
    }  # fmt: skip
    stated: dict[str, Any] = {
        "tp": tp, "pp": pp, "cp": cp, "ep": ep, "zero_stage": zero_stage,
        "micro_batch_size": micro_batch_size, "activation_checkpointing": activation_checkpointing,
        "precision": precision, "engine": engine, **pairs_of(",".join(layout or [])),
    }  # fmt: skip
    row: dict[str, Any] = {}
    if log is not None:
        if trainer is None:
            raise InputError(f"--log {log}: give --trainer, the program that wrote it")
        if tokens_per_s_per_gpu is not None:
            number = f"--tokens-per-s-per-gpu {tokens_per_s_per_gpu:g}"
            raise InputError(f"{number}: --log {log} tells the number")
        told = [f"{name}={value}" for name, value in work.items() if value is not None]
        row = row_of_log(log, trainer, [*(column or []), *told])
        work = {name: row[name] for name in work}
    elif trainer is not None or column:
        raise InputError("--trainer and --column say how to read a --log; none is given")
    given = {name: value for name, value in stated.items() if value is not None}
    axes = axis_values({name: row[name] for name in AXES if name in row} | given)
    for name, option in (("model", "--model"), ("cluster", "--cluster"), ("world_size", "--gpus")):
        if work[name] is None:
            raise InputError(f"{option}: missing; say the model, the cluster and the GPUs")
    tokens, ranks = int(work["seq_length"] or SEQ_LENGTH), int(work["world_size"])
    batch = work["global_batch_size"]
    if batch is None:
        batch = _usual_batch(axes, ranks, tokens, gradient_accumulation_steps)
    elif gradient_accumulation_steps is not None:
        raise InputError("--gradient-accumulation-steps: --global-batch-size is given; leave one")
    where = str(work["model"]), str(work["cluster"]), ranks, tokens, int(batch)
    search, asked = layout_asked(axes, *where)
    for name in ("num_layers", "hidden_size", "num_heads"):
        ours, theirs = getattr(search.shape, name), row.get(name)
        if theirs not in (None, ours):
            raise InputError(
                f"{log}: says {name}={shortened(theirs)}, but {search.model} has {ours}"
            )
    if tokens_per_s_per_gpu is None and not row:
        raise InputError("--tokens-per-s-per-gpu: give the number in question, or --log")
    if "engine" not in row:
        search = dataclasses.replace(search, framework=row.get("framework"))
    peak = row.get("peak_memory_bytes")
    found = expected(
        search,
        asked,
        tokens_per_s_per_gpu,
        parameters,
        step_time_s=row.get("step_time_s"),
        peak_memory_bytes=peak if isinstance(peak, int) else None,
    )
    if work["global_batch_size"] is None and gradient_accumulation_steps is None:
        say_batch(asked)
    if as_json:
        print_json(found)
        return
    print_assumptions(found["assumptions"])
    for line in screen(found, asked):
        typer.echo(printable(line))


def _usual_batch(axes: Mapping[str, Any], gpus: int, tokens: int, steps: int | None) -> int:
    """Sequences of a step that nobody stated; `steps` of accumulation may be."""
    from scaling.predict.advise.candidates import usual_batch

    values = {**DEFAULTS, **axes}
    once = max(gpus // replica_size(values), 1) * values["micro_batch_size"]
    # whole rounds of the pipeline, which interleaving needs
    rounds = max(round(usual_batch(tokens, gpus) / (once * values["pp"])), 1)
    return int(once * (steps or rounds * values["pp"]))


def screen(told: Mapping[str, Any], layout: "Layout") -> list[str]:
    """The answer, of lines of at most 80 characters."""
    batch = f"{layout.global_batch_size:,} x {layout.seq_length:,} tokens a step"
    head = f"{told['model']} on {counted(told['gpus'], 'GPU')} of {told['cluster']}: "
    step_s, given_s = told["step_time_s"], told["given_step_time_s"]
    facts = {
        "given": _rate(told["given"], given_s, told["given_mfu"]),
        "expected": _rate(told["expected"], step_s, told["mfu"]),
        "interval": f"{told['low']:,.0f} to {told['high']:,.0f} tokens/s per GPU, 80 %",
        "from": told["source_words"],
        "so": told["verdict"],
    }
    lines = _wrapped(f"{head}{name_of(layout)}, {batch}")
    for name, fact in facts.items():
        lines += _wrapped(f"{name:<10}{fact}")
    lines += ["", "the expected step by parts"]
    for part, taken in told["parts"].items():
        share = taken / step_s
        if share >= 0.005:
            lines.append(f"  {part:<24}{_seconds(taken):>9} s{100 * share:>6.0f} %")
    if told["gap_s"] > 0:
        lines.append(f"  {'the given step has more':<24}{_seconds(told['gap_s']):>9} s")
    rate = f"{told['given_model_flop_per_s'] / 1e12:,.0f}"
    near = f" nearest to it, in model TFLOP/s of one GPU; given: {rate}"
    lines += [
        "",
        f"published rows{near if told['published'] else ': none of such a model on this GPU'}",
    ]
    for row in told["published"]:
        text = (
            f"{row['model_flop_per_s_per_gpu'] / 1e12:.0f}: {row['model']}, {row['world_size']} "
            f"GPUs, {row['layout']}, {row['precision']}, {row['tokens_per_s_per_gpu']:,.0f} "
            f"tokens/s per GPU ({row['source']}, {row['release']})"
        )
        lines += _wrapped(text, "  ")
    should = "layouts that should be faster"
    none = f"{should}: {told['why_none_faster']}"
    lines += [
        "",
        *_wrapped(f"{should} than this one, both as expected" if told["faster"] else none),
    ]
    for one in told["faster"]:
        text = (
            f"{layout_name(one)}: {100 * one['gain']:+.0f} % tokens/s ({100 * one['chance']:.0f} % "
            f"likely), {100 * (1 - one['memory_margin']):.0f} % of memory"
        )
        lines += _wrapped(text, "  ")
    looks = (line for look in told["looks"] for line in _wrapped(f"- {look}", "  "))
    return [*lines, "", "look first at", *looks]


def _rate(tokens: float, step_s: float, mfu: float) -> str:
    return f"{tokens:,.0f} tokens/s per GPU, {_seconds(step_s)} s a step, {100 * mfu:.1f} % MFU"


def _seconds(value: float) -> str:
    """Seconds with three digits, or whole."""
    return f"{value:,.0f}" if value >= 999.5 else f"{value:.3g}"


def _wrapped(text: str, indent: str = "") -> list[str]:
    return textwrap.wrap(
        text, _WIDTH, initial_indent=indent, subsequent_indent=f"{indent}  ",
        break_on_hyphens=False,
    )  # fmt: skip
