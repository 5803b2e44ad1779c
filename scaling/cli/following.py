"""`scaling status`: how a sweep is, once or again and again."""

from pathlib import Path
from time import sleep
from typing import Annotated

import typer

from scaling.cli.options import ClusterName, Mode, StudyName
from scaling.study.paths import RESULTS, StudyPaths

LOOK_EVERY_S = 5.0


def status(
    study: StudyName,
    watch: Annotated[bool, typer.Option(help="Say it again until all is measured.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One line of JSON, for scripts.")] = False,
    mode: Mode = None,
    cluster: ClusterName = None,
) -> None:
    """How a study is: points done, what runs and waits, what it cost, the best, the end."""
    from scaling.run import planning
    from scaling.run.guided import budget_gpu_hours
    from scaling.run.progress import watcher_of
    from scaling.run.status import status_of
    from scaling.study.study import load_study
    from scaling.study.study_folder import folder_of

    loaded = load_study(study, mode=mode, cluster=cluster)
    wanted = planning.to_measure(loaded, planning.fitting_plan(loaded))
    folder = folder_of(loaded, RESULTS)
    say_unreadable(folder)
    watcher = watcher_of(loaded, wanted, folder)
    budget = budget_gpu_hours(loaded)
    while True:
        now = status_of(watcher, budget_gpu_hours=budget)
        typer.echo(now.to_json() if as_json else "\n".join(now.lines()))
        if not watch or now.progress.finished:
            return
        sleep(LOOK_EVERY_S)


def say_unreadable(study_dir: Path) -> None:
    """Set aside what is no row, and say so, until its point has run again."""
    from scaling.record import row_files

    row_files.set_aside(StudyPaths(study_dir).rows)
    for unusable in row_files.kept_aside(StudyPaths(study_dir).rows):
        typer.echo(f"Set aside, its point will run again: {unusable}", err=True)
