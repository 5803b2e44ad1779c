"""`scaling command`: how a layout is started with each program."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scaling.cli.model import model_of
from scaling.cli.options import AsJson, check_choice, print_json
from scaling.errors import InputError, did_you_mean, printable, shortened
from scaling.layout.engines import ENGINES, TRAINERS

if TYPE_CHECKING:
    from scaling.layout.layout import Layout
    from scaling.layout.shapes import ModelShape
    from scaling.study.point import Point

PROGRAMS = (*ENGINES, *TRAINERS)


def command(
    what: Annotated[
        str,
        typer.Argument(
            metavar="POINT|LAYOUT",
            help="A point's JSON file, or axes: tp=2,zero_stage=1,micro_batch_size=1.",
        ),
    ],
    program: Annotated[str, typer.Option("--as", help=f"One of {', '.join(PROGRAMS)}.")],
    model: Annotated[
        str | None, typer.Option(help="Of a layout: a name of models.yaml or a config.json.")
    ] = None,
    gpus: Annotated[int | None, typer.Option(min=1, max=10_000_000, help="Of a layout.")] = None,
    global_batch_size: Annotated[
        int | None, typer.Option(min=1, max=10_000_000, help="Of a layout: sequences per step.")
    ] = None,
    seq_length: Annotated[int, typer.Option(min=1, max=10_000_000, help="Of a layout.")] = 4096,
    cluster: Annotated[
        str, typer.Option(help="Of a layout: a cluster of config/clusters.yaml, or a GPU.")
    ] = "h100-80gb",
    out: Annotated[Path, typer.Option(help="Where files of the command go.")] = Path("launch"),
    as_json: AsJson = False,
) -> None:
    """Print the command line and the files that start a layout with a program."""
    from scaling.trainers.render import start_of

    check_choice("--as", program, PROGRAMS)
    if what.endswith(".json"):
        from scaling.launch.point_files import read_point

        point = read_point(Path(what))
    else:
        point = point_of_axes(what, model, gpus, global_batch_size, seq_length, cluster)
    start = start_of(point, program, out)
    for name, text in start.files.items():
        out.mkdir(parents=True, exist_ok=True)
        (out / name).write_text(text, encoding="utf-8")
    if as_json:
        print_json(dataclasses.asdict(start))
        return
    if start.refused:
        typer.echo("\n".join(map(printable, start.refused)), err=True)
    for said in (*(f"wrote {out / name}" for name in start.files), *start.notes):
        typer.echo(f"# {said}")
    typer.echo(start.shell)


def axis_values(text: str) -> dict[str, Any]:
    """The axes of a layout that is written as `tp=2,zero_stage=1`.

    Raises:
        InputError: an axis or a value is wrong.
    """
    from pydantic import TypeAdapter, ValidationError

    from scaling.layout.axes import AXES
    from scaling.study.problems import first_problem
    from scaling.study.schema import Axes

    values: dict[str, Any] = {}
    for part in filter(None, text.split(",")):
        name, equals, value = part.strip().partition("=")
        if name not in AXES or not equals:
            raise InputError(f"{shortened(part)}: no axis=value: {did_you_mean(name[:60], AXES)}")
        kind = AXES[name].kind
        values[name] = int(value) if kind is int and value.isdecimal() else value
        if kind is bool and value in ("true", "false"):
            values[name] = value == "true"
    try:
        TypeAdapter(Axes).validate_python(values)
    except ValidationError as error:
        raise InputError(f"{shortened(text)}: {first_problem(error, Axes)}") from None
    return values


def point_of_axes(
    text: str,
    model: str | None,
    gpus: int | None,
    global_batch_size: int | None,
    seq_length: int,
    cluster: str,
) -> "Point":
    """The point of a layout that is written as axes with their values.

    Raises:
        InputError: an axis or a value is wrong, or the ranks do not divide.
    """
    from scaling.layout.axes import DEFAULTS
    from scaling.layout.layout import Layout, refusals, replica_size

    if model is None or gpus is None:
        raise InputError(f"{shortened(text)}: a layout needs --model and --gpus")
    values = axis_values(text)
    replica = replica_size(DEFAULTS | values)
    micro = values.get("micro_batch_size", 1)
    dp, rest = divmod(gpus, replica)
    accumulation, left = divmod(global_batch_size or micro * dp, max(micro * dp, 1))
    if rest or left or not dp:
        raise InputError(
            f"{shortened(text)}: --gpus {gpus} and --global-batch-size {global_batch_size} do not "
            f"divide by {replica} ranks of a replica and micro_batch_size={micro}"
        )
    layout = Layout(
        **values, dp=dp, gradient_accumulation_steps=accumulation, seq_length=seq_length
    )
    found = model_of(model)
    if reasons := list(refusals(found.shape, layout)):
        raise InputError(f"{shortened(text)}: {reasons[0]}")
    return point_of_layout(found.name, found.shape, layout, cluster)


def point_of_layout(
    model: str, shape: "ModelShape", layout: "Layout", cluster_name: str
) -> "Point":
    """The point of a layout on a cluster, as a study would have it.

    Raises:
        InputError: there is no such cluster.
    """
    from scaling.predict.read.clusters import cluster_named, site_clusters
    from scaling.trainers.render import point_to_start

    clusters = site_clusters()
    cluster = clusters.get(cluster_name) or cluster_named(cluster_name, clusters)
    return point_to_start(
        model, shape, layout, cluster=cluster_name, gpu=cluster.gpu,
        gpus_per_node=cluster.gpus_per_node,
    )  # fmt: skip
