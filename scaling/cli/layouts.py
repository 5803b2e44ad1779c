"""`scaling model` and `command`: what is understood of a model, and how a layout is started."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scaling.cli.options import AsJson, arg, check_choice, count, opt, print_json, warn
from scaling.errors import InputError, did_you_mean, printable, shortened
from scaling.layout.axes import AXES, DEFAULTS
from scaling.layout.engines import ENGINES, programs
from scaling.layout.layout import Layout, refusals, replica_size

if TYPE_CHECKING:
    from scaling.predict.advise.candidates import Search
    from scaling.study.config_json import ConfigModel

PROGRAM_HELP = f"{', '.join(ENGINES)}, or a program of config/trainers.yaml: megatron, hf ..."
MODEL_HELP = "A model of config/models.yaml, a config.json, its folder, a cached hub name."
CLUSTER_HELP = "A cluster of config/clusters.yaml, or a GPU."
SEQ_LENGTH = 4096


def model(
    path: Annotated[str, arg("PATH", MODEL_HELP)],
    seq_length: Annotated[int, count("Tokens per sequence, for the FLOPs.")] = 4096,
    as_json: AsJson = False,
) -> None:
    """Show what is understood of a model: shape, parameters, FLOPs, what is left out and why."""
    from scaling.layout.engines import engine_refusals
    from scaling.layout.shapes import matmul_flops_per_token, model_flops_per_token
    from scaling.study.point import stored_fields

    found = model_of(path, said="PATH")
    shape = found.shape
    facts: dict[str, Any] = {
        "name": found.name,
        "path": str(found.path),
        "shape": stored_fields(shape),
        "total_params": shape.total_params,
        "active_params": shape.active_params,
        "seq_length": seq_length,
        "model_flops_per_token": model_flops_per_token(shape, seq_length),
        "matmul_flops_per_token": matmul_flops_per_token(shape, seq_length),
        "left_out": list(found.left_out),
        "predict_only": list(engine_refusals(shape, Layout(seq_length=seq_length))),
    }
    if as_json:
        print_json(facts)
        return
    for line in (
        f"{found.name}: {shape.total_params:,} parameters, {shape.active_params:,} for one token",
        ", ".join(f"{name} {str(value).lower()}" for name, value in facts["shape"].items()),
        f"{facts['model_flops_per_token']:.4g} FLOPs a token at {seq_length:,} tokens a sequence "
        f"({facts['matmul_flops_per_token']:.4g} of matrix products)",
        *(f"left out: {what}" for what in found.left_out),
        *(f"predict only: {why}" for why in facts["predict_only"]),
    ):
        typer.echo(printable(line))


def model_of(text: str, said: str = "--model") -> "ConfigModel":
    """The model that a text of the command line means.

    Raises:
        InputError: it means none, or one that cannot be counted.
    """
    from scaling.predict.read.clusters import config_file, site_models
    from scaling.study.config_json import ConfigModel, model_named

    models = site_models()
    if (found := model_named(text, models, Path(), said)) is not None:
        return found
    if text not in models:
        hint = did_you_mean(text[:60], models)
        raise InputError(
            f"{said} {shortened(text)}: not in config/models.yaml, and no config.json: {hint}"
        )
    file = config_file("models.yaml")
    return ConfigModel(path=file, name=text, shape=models[text], left_out=())


def command(
    what: Annotated[
        str,
        arg("POINT|LAYOUT", "A point's JSON file, or axes: tp=2,zero_stage=1,micro_batch_size=1."),
    ],
    program: Annotated[str, opt(f"What starts it: {PROGRAM_HELP}", "--as")],
    model: Annotated[str | None, opt(f"Of a layout: {MODEL_HELP}")] = None,
    gpus: Annotated[int | None, count("Of a layout.")] = None,
    global_batch_size: Annotated[int | None, count("Of a layout: sequences per step.")] = None,
    seq_length: Annotated[int, count("Of a layout.")] = SEQ_LENGTH,
    cluster: Annotated[str, opt(f"Of a layout: {CLUSTER_HELP}")] = "h100-80gb",
    out: Annotated[Path, opt("Where files of the command go.")] = Path("launch"),
    as_json: AsJson = False,
) -> None:
    """Print the command line and the files that start a layout with a program."""
    from scaling.launch.point_files import read_point
    from scaling.record.files import write_text
    from scaling.trainers.render import start_of

    check_choice("--as", program, programs())
    if what.endswith(".json"):
        point = read_point(Path(what))
    elif model is None or gpus is None:
        raise InputError(f"{shortened(what)}: a layout needs --model and --gpus")
    else:
        axes = axis_values(pairs_of(what))
        search, layout = layout_asked(axes, model, cluster, gpus, seq_length, global_batch_size)
        point = search.point(layout)
    start = start_of(point, program, out)
    for name, text in start.files.items():
        write_text(out / name, text)
    if as_json:
        print_json(dataclasses.asdict(start))
        return
    for reason in start.refused:
        warn(reason)
    for said in (*(f"wrote {out / name}" for name in start.files), *start.notes):
        typer.echo(f"# {said}")
    typer.echo(start.shell)


def pairs_of(text: str) -> dict[str, str]:
    """The names and values of `tp=2,zero_stage=1`; a value is empty if there is no `=`.

    Raises:
        InputError: a name has two values.
    """
    values: dict[str, str] = {}
    for part in filter(None, text.split(",")):
        name, _, value = map(str.strip, part.partition("="))
        if values.setdefault(name, value) != value:
            raise InputError(f"{shortened(text)}: {shortened(name)} is given twice; keep one")
    return values


def axis_values(stated: Mapping[str, Any]) -> dict[str, Any]:
    """The values of axes, which may be texts, each by the axis's kind.

    Raises:
        InputError: an axis or a value is wrong.
    """
    from pydantic import TypeAdapter, ValidationError

    from scaling.study.problems import first_problem
    from scaling.study.schema import Axes

    values: dict[str, Any] = {}
    for name, value in stated.items():
        if name not in AXES or value == "":
            hint = did_you_mean(name[:60], AXES)
            raise InputError(f"{shortened(f'{name}={value}')}: no axis=value: {hint}")
        values[name] = value
        if isinstance(value, str) and AXES[name].kind is int and value.isdecimal():
            values[name] = int(value)
        if AXES[name].kind is bool and value in ("true", "false"):
            values[name] = value == "true"
    try:
        TypeAdapter(Axes).validate_python(values)
    except ValidationError as error:
        text = ",".join(f"{name}={value}" for name, value in stated.items())
        raise InputError(f"{shortened(text)}: {first_problem(error, Axes)}") from None
    return values


def layout_asked(
    axes: Mapping[str, Any],
    model: str,
    cluster: str,
    gpus: int,
    seq_length: int,
    global_batch_size: int | None,
) -> "tuple[Search, Layout]":
    """A model on GPUs, and the layout; without a batch a replica has one micro-batch a step.

    Raises:
        InputError: the ranks do not divide, or the model cannot have the layout.
    """
    from scaling.predict.advise.candidates import Search
    from scaling.predict.read.clusters import site_clusters

    replica, micro = replica_size({**DEFAULTS, **axes}), axes.get("micro_batch_size", 1)
    dp, rest = divmod(gpus, replica)
    accumulation, left = divmod(global_batch_size or micro * dp, max(micro * dp, 1))
    said = ",".join(f"{name}={value}" for name, value in axes.items())
    wrong = ""
    if rest or not dp:
        wrong = f"--gpus {gpus} do not divide by {replica} ranks of a replica"
    elif left:
        wrong = f"--global-batch-size {global_batch_size} is no multiple of {micro * dp} sequences "
        wrong += f"(micro_batch_size={micro} x dp={dp})"
    if wrong:
        raise InputError(f"{shortened(said)}: {wrong}")
    layout = Layout(**axes, dp=dp, gradient_accumulation_steps=accumulation, seq_length=seq_length)
    found = model_of(model)
    if reasons := list(refusals(found.shape, layout)):
        raise InputError(f"{shortened(said)}: {reasons[0]}")
    where = Search(
        model=found.name, shape=found.shape, cluster=cluster, clusters=site_clusters(), gpus=gpus
    )
    return where, layout
