"""The verbs about a whole folder or study: a new one, one to hand on, one that shall end."""

import importlib.metadata
from pathlib import Path
from typing import Annotated

import typer

from scaling.cli.options import StudyDir, StudyName

# Another project of this name is on the package index, and puts its files where ours lie.
_OTHER = "scaling"
_ENTRY_POINT = "scaling.cli.verbs:main"


def new(
    folder: Annotated[
        Path, typer.Argument(help="A folder to make, or one that has no config yet.")
    ],
) -> None:
    """Make a folder to run studies in: Snakefile, config with your cluster, a first study."""
    from scaling.cluster.slurm_site import ask_slurm
    from scaling.run.new_folder import make_folder

    site = ask_slurm()
    for path in make_folder(folder, site):
        typer.echo(path)
    origin = "what Slurm says of this site" if site else "no cluster: no Slurm answers here"
    typer.echo(f"config/clusters.yaml holds {origin}. Next: cd {folder} && scaling plan first")


def export(
    study_dir: StudyDir,
    out: Annotated[Path, typer.Argument(metavar="OUT.zip", help="The file to hand on.")],
) -> None:
    """Pack tables, page and study for others (RO-Crate): no user names, no paths, no logs."""
    from scaling.run.export import export as pack
    from scaling.study.paths import own_or_shipped

    names = pack(study_dir, out, own_or_shipped("reports"))
    typer.echo(f"{len(names)} files -> {out}")


def stop(
    study: StudyName,
    scheduler: Annotated[
        str, typer.Option(help="Where its allocations were sent: slurm or local.")
    ] = "slurm",
) -> None:
    """End a study for good, also where its snakemake is dead; what is measured is kept."""
    from scaling.run.stop import stop_study
    from scaling.study.paths import RESULTS

    sentences, ended = stop_study(study, RESULTS, scheduler)
    for sentence in sentences or ["Nothing of it was running."]:
        typer.echo(sentence)
    raise typer.Exit(0 if ended else 1)


def clash() -> str | None:
    """One sentence where another project's package `scaling` is installed beside this one."""
    try:
        other = importlib.metadata.distribution(_OTHER)
    except importlib.metadata.PackageNotFoundError:
        return None
    if any(point.value == _ENTRY_POINT for point in other.entry_points):
        return None  # this project, installed before it had a name of its own
    return (
        f"another project, {_OTHER} {other.version}, is installed in this environment under the "
        f"same import name and may have overwritten files: pip uninstall {_OTHER}, then install "
        "training-scaling again"
    )
