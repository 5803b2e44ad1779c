"""The command line: one verb for each step of a study, and a few for its operators."""

import contextlib
import io
import os
import pwd
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from scaling import __version__
from scaling.cli import folders, layouts, prediction, tables
from scaling.cli.expect import expect
from scaling.cli.memory import memory
from scaling.cli.options import (
    REHEARSE,
    ClusterName,
    Implied,
    Mode,
    StudyName,
    arg,
    check_output,
    opt,
    warn,
)
from scaling.cli.recommend import recommend
from scaling.errors import InputError, counted, printable
from scaling.study.paths import RESULTS

app = typer.Typer(
    name="scaling",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"scaling {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, opt("Show the version.", "--version", is_eager=True, callback=_show_version)
    ] = False,
) -> None:
    """Which parallel layout trains fastest at each GPU count, and what one more GPU buys."""


@app.command(epilog="Example:  scaling plan quickstart")
def plan(
    study: StudyName,
    write: Annotated[bool, opt("Write the plan's files into the study's folder.")] = True,
    rehearse: Annotated[bool, opt(REHEARSE)] = True,
    mode: Mode = None,
    cluster: ClusterName = None,
) -> None:
    """Expand a study: show what would run, what is refused and why, and the predicted cost."""
    from scaling.cli import show
    from scaling.run import plan_writer, planning, price

    say = warn if rehearse else None
    planned = planning.plan_study(study, mode=mode, cluster=cluster, say=say)
    if write:
        plan_writer.write_plan(planned)
    loaded, plan = planned.study, planned.plan
    prices = (price.price_of(loaded, plan), price.cheapest_price(loaded))
    show.show_plan(loaded, plan, planned.probe_plan, *prices)


@app.command(epilog="Example:  scaling run quickstart -- --dry-run")
def run(
    study: StudyName,
    snakemake: Annotated[
        list[str] | None, arg("[-- SNAKEMAKE OPTIONS]", "Options for snakemake.")
    ] = None,
    implied: Implied = True,
    mode: Mode = None,
    cluster: ClusterName = None,
    notify: Annotated[
        str | None, opt("A command for the end; $SCALING_OK, $SCALING_OOM ... count.")
    ] = None,
) -> None:
    """Run what is missing of a study with Snakemake, and show its progress."""
    from scaling.run.snakemake import run_study

    options = snakemake or []
    code = run_study(study, options, mode=mode, cluster=cluster, notify=notify, implied=implied)
    raise typer.Exit(code)


@app.command(epilog="Example:  scaling measure results/S/points/P.json results/S/rows/P.parquet")
def measure(
    point: Annotated[Path, arg("POINT", "The point's JSON file.")],
    row: Annotated[Path, arg("ROW", "Where its Parquet row goes.")],
    excluded: Annotated[str, opt("Hosts that the allocation excluded, to record in the row.")] = "",
    implied: Implied = True,
) -> None:
    """Train one point and leave its row, whatever happens to it."""
    from scaling import launch

    try:
        left_out = [host for host in excluded.split(",") if host]
        measured = launch.measure(point, row, excluded=left_out, implied=implied)
        launch.ignore_signals()  # the row is there, so this must exit with 0
    except launch.NotMeasured as why:
        with _printing_may_fail():
            typer.echo(f"{point.stem}: {printable(str(why))}", err=True)
        raise typer.Exit(why.exit_code) from None
    line = f"{measured.point_id}: {measured.outcome}"
    with _printing_may_fail():
        said = measured.error_message
        typer.echo(f"{line}: {printable(said)}" if said else line)


@app.command("next", epilog="Example:  scaling next my_study 1 results/my_study/round1.parquet")
def next_points(
    study: StudyName,
    number: Annotated[int, typer.Argument(metavar="ROUND", min=1, help="From 1.")],
    out: Annotated[Path, arg("OUT", "Where the Parquet table goes.")],
    mode: Mode = None,
    cluster: ClusterName = None,
) -> None:
    """Choose the points that a round measures: those expected to gain most per GPU-hour."""
    from scaling.run import planning, rounds

    planned = planning.plan_study(study, mode=mode, cluster=cluster)
    typer.echo(rounds.choose(planned.study, planned.plan, number, planned.folder, out))


@app.command(epilog="Example:  scaling probe results/S/probe.json results/S/probes.parquet")
def probe(
    plan: Annotated[Path, arg("PLAN", "The plan: probe.json.")],
    out: Annotated[Path, arg("OUT", "Where the Parquet table goes.")],
    logs: Annotated[Path | None, opt("A folder for the ranks' logs; default: beside OUT.")] = None,
) -> None:
    """Measure what a cluster's GPUs, memory and links reach, and name slow hosts."""
    from scaling.analyse.hosts import slow_in_probes
    from scaling.cli import show
    from scaling.launch import NotMeasured, ignore_signals
    from scaling.launch.probing import probe as probed

    try:
        rows = probed(plan, out, logs=logs)
        ignore_signals()  # the table is there, so this must exit with 0
    except NotMeasured as why:
        with _printing_may_fail():
            typer.echo(f"probe: {printable(str(why))}", err=True)
        raise typer.Exit(why.exit_code) from None
    with _printing_may_fail():
        show.show_probes(rows, slow_in_probes(rows))


@contextlib.contextmanager
def _printing_may_fail() -> Iterator[None]:
    """Keep the exit code though nothing can be printed, as on a full disk.

    By it Snakemake removes what was written, or keeps it.
    """
    try:
        yield
        sys.stdout.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in (sys.stdout, sys.stderr):
            os.dup2(nowhere, stream.fileno())


@app.command(epilog="Example:  scaling retry quickstart --outcome timeout,node_failed")
def retry(
    study: StudyName,
    outcome: Annotated[
        str, opt("Outcomes to run again, separated by commas.")
    ] = "timeout,hang,launch_failed,node_failed",
) -> None:
    """Set the rows of failed points aside, so that the next run measures these points again."""
    from scaling.run import retry
    from scaling.study.load import load_study
    from scaling.study.study import study_folder

    loaded = load_study(study)
    folder = study_folder(loaded, RESULTS)
    folders.report_unreadable_rows(folder)
    retry.set_unreadable_aside(folder)
    moved = retry.set_aside(folder, retry.outcomes(outcome))
    if moved:
        typer.echo(f"{counted(moved, 'point')} will run again: scaling run {shlex.quote(study)}")
    else:
        typer.echo(f"No point of {loaded.name} ended as {outcome}; nothing to run again.")


@app.command(epilog="Example:  scaling check check.json")
def check(
    out: Annotated[Path, arg("OUT.json", "Where the JSON goes, with a page beside it.")],
    only: Annotated[str, opt("Some of facts,kernels,meters,training; default: all.")] = "",
) -> None:
    """Check this machine before measuring on it: limits, kernels, meters, training, outcomes."""
    from scaling.check.lines import chosen_sections

    if not out.name:
        raise InputError(f"{out}: must be a file, such as check.json")
    if not out.absolute().parent.is_dir():
        raise InputError(f"{out}: there is no folder {out.parent} to write it in")
    sections = chosen_sections(only)
    out = out.with_suffix(".json")
    check_output(out)
    command = [sys.executable, "-m", "scaling.check", str(out), *sections]
    raise typer.Exit(subprocess.run(command, check=False).returncode)  # torch is imported there


for verb, example in (
    (tables.tabulate, "tabulate results/quickstart"),
    (tables.report, "report results/quickstart"),
    (tables.import_, "import published.csv results/published"),
    (tables.compare, "compare results/before results/after"),
    (folders.new, "new my-sweeps"),
    (folders.export, "export results/quickstart quickstart.zip"),
    (folders.stop, "stop quickstart"),
    (folders.status, "status quickstart --watch"),
    (prediction.predict, "predict points.csv predictions.parquet -c calibration.json"),
    (prediction.calibrate, "calibrate rows.csv calibration.json --where 'world_size <= 64'"),
    (prediction.validate, "validate rows.csv --calibrate-where 'world_size <= 32' --json"),
    (recommend, "recommend --model llama2_7b --cluster h100-80gb --gpus 8,64 --tokens 2T"),
    (layouts.command, "command tp=2,zero_stage=1 --model llama3_8b --gpus 64 --as megatron"),
    (layouts.model, "model ~/models/Qwen3-8B/config.json"),
    (
        expect,
        "expect --model llama3_8b --cluster h100-80gb-dgx --gpus 64 --tp 2 --zero-stage 1 "
        "--tokens-per-s-per-gpu 6300",
    ),
    (memory, "memory results/my_study/points/P.json --ranks first,last"),
):
    app.command(verb.__name__.rstrip("_"), epilog=f"Example:  scaling {example}")(verb)


def main() -> None:
    """Run a verb; a user's mistake becomes one sentence on stderr and exit code 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal may know fewer letters
            with contextlib.suppress(OSError):
                stream.reconfigure(errors="backslashreplace")
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:  # a user id without a name, as in containers: what a login does
        os.environ.setdefault("HOME", "/")
        os.environ.setdefault("LOGNAME", str(os.getuid()))  # snakemake asks for a name
    nameless = "the working directory"
    try:
        Path.cwd()
        nameless = "the output, or a file"
        app()
    except InputError as error:
        sentence = str(error)
    except BrokenPipeError:  # the reader of a pipe has closed it
        sys.exit(1)
    except OSError as error:  # such as a wrong path or a full disk
        sentence = f"{error.filename or nameless}: {error.strerror}"
    else:
        return
    with _printing_may_fail():
        typer.echo("\n".join(printable(line) for line in sentence.splitlines()), err=True)
    sys.exit(2)
