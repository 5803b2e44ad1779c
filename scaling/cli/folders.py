"""Verbs about a whole folder or study: make one, show its status, export it, stop it."""

import shlex
import sys
from pathlib import Path
from time import sleep
from typing import Annotated

import typer

from scaling.cli.options import ClusterName, Mode, StudyDir, StudyName, arg, check_output, opt
from scaling.errors import first_few
from scaling.study.paths import RESULTS, StudyPaths

LOOK_EVERY_S = 5.0


def new(
    folder: Annotated[Path, arg("FOLDER", "A new folder, or one without a config.")],
    model: Annotated[str | None, opt("A config.json, its folder, or a cached hub name.")] = None,
) -> None:
    """Make a folder to run studies in: Snakefile, config with your cluster, a first study."""
    from scaling.cli.layouts import model_of
    from scaling.cluster.slurm_site import query_slurm
    from scaling.run.new_folder import make_folder

    if model is None and sys.stdin.isatty():
        asked = "Your model's config.json (Enter: a small model)"
        model = typer.prompt(asked, default="", show_default=False)
    site, found = query_slurm(), model_of(model) if model else None
    for path in make_folder(folder, site, found):
        typer.echo(path)
    content = "this site's cluster as Slurm describes it" if site else "this machine: no Slurm here"
    there = shlex.quote(str(folder))
    typer.echo(f"config/clusters.yaml holds {content}. Next: cd {there} && scaling plan first")


def export(
    study_dir: StudyDir,
    out: Annotated[Path, arg("OUT.zip", "The file to write.")],
    with_messages: Annotated[
        bool, opt("Keep error messages, title and comments.", "--with-messages")
    ] = False,
) -> None:
    """Pack tables, page and study to share: no user, host or path, no free text, no logs."""
    from scaling.predict.read.clusters import site_clusters
    from scaling.run.export import export as pack
    from scaling.study.inputs import local_or_shipped

    check_output(out)
    reports = local_or_shipped("reports")
    names = pack(study_dir, out, reports, clusters=site_clusters(), with_messages=with_messages)
    typer.echo(f"{len(names)} files -> {out}")


def status(
    study: StudyName,
    watch: Annotated[bool, opt("Repeat until all is measured.")] = False,
    as_json: Annotated[bool, opt("One line of JSON, for scripts.", "--json")] = False,
    mode: Mode = None,
    cluster: ClusterName = None,
) -> None:
    """Show a study's status: points done, running and waiting, cost, fastest layouts, end."""
    from rich.console import Console

    from scaling.run import planning
    from scaling.run.status import status_of, watch_study

    planned = planning.plan_study(study, mode=mode, cluster=cluster)
    report_unreadable_rows(planned.folder)
    watcher = watch_study(planned.study, planned.plan.points, planned.folder)
    budget = planned.study.measure.budget_gpu_hours
    while True:
        now = status_of(watcher, budget_gpu_hours=budget)
        if watch and not as_json:
            Console().clear()  # does nothing without a terminal
        typer.echo(now.to_json() if as_json else "\n".join(now.lines()))
        if not watch or now.progress.finished:
            return
        sleep(LOOK_EVERY_S)


def report_unreadable_rows(study_dir: Path) -> None:
    """Name the row files that count for nothing; `scaling run` repeats points without a valid row.

    One that may not be read is left to those who may.
    """
    from scaling.record.row_files import read_rows, row_files_in

    rows = read_rows(sorted(row_files_in(StudyPaths(study_dir).rows)))
    unread = [f"Left out: {one}" for one in rows.unusable if one.refused]
    again = [f"Its point runs again: {one}" for one in rows.without_a_row()]
    for line in (*first_few(unread), *first_few(again)):
        typer.echo(line, err=True)


def stop(
    study: StudyName,
    scheduler: Annotated[str, opt("slurm, or one of your own.")] = "slurm",
) -> None:
    """Stop a study for good, even if its snakemake is dead; measured points are kept."""
    from scaling.run.stop import stop_study

    said: list[str] = []

    def say(sentence: str) -> None:
        said.append(sentence)
        typer.echo(sentence)

    ended = stop_study(study, RESULTS, scheduler, say)
    if not said:
        say("Nothing of this study was running.")
    raise typer.Exit(0 if ended else 1)
