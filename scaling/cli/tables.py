"""Verbs from rows to a report: tables, the page, rows and logs of others, comparisons."""

import datetime
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scaling.cli.options import AsJson, NewStudyDir, OtherStudyDir, StudyDir, check_choice
from scaling.errors import InputError, printable, shortened
from scaling.study.inputs import local_or_shipped

if TYPE_CHECKING:
    from scaling.cluster.hardware import Cluster

KneeShare = Annotated[
    float | None,
    typer.Option(help="Share of twice the speed that a doubling must give; default: the study's."),
]


def tabulate(
    study_dir: StudyDir,
    sql: Annotated[
        Path, typer.Option(help="The folder of SQL files.", callback=local_or_shipped)
    ] = Path("reports/sql"),
    knee_share: KneeShare = None,
) -> None:
    """Turn a study's rows into tables: one SQL file, one Parquet file."""
    from scaling.analyse import replication, warehouse
    from scaling.study.study import read_study_info

    for unusable in warehouse.tabulate(study_dir, sql, clusters=_clusters(), knee_share=knee_share):
        typer.echo(f"Left out: {unusable}", err=True)
    replicates = read_study_info(study_dir).replicates
    if replicates is not None:
        replication.replicate(study_dir, sql.parent / replication.FOLDER / replicates)


def report(
    study_dir: StudyDir,
    reports: Annotated[
        Path,
        typer.Option(help="The folder of captions, SQL and page.", callback=local_or_shipped),
    ] = Path("reports"),
    tables: Annotated[bool, typer.Option(help="First make the tables again.")] = True,
    charts: Annotated[bool, typer.Option(help="Write every chart as SVG and PNG.")] = True,
    knee_share: KneeShare = None,
) -> None:
    """Write report.html from what has been measured so far."""
    from scaling.report.page import page

    if tables:
        tabulate(study_dir, reports / "sql", knee_share)
    typer.echo(f"The report: {page.write_report(study_dir, reports, charts=charts)}")


def import_(
    rows: Annotated[
        Path, typer.Argument(metavar="ROWS", help="Published rows: CSV, JSON or Parquet.")
    ],
    study_dir: NewStudyDir,
) -> None:
    """Import rows that others published into a study, as a separate series."""
    from scaling.analyse import importing
    from scaling.cli.prediction import catalogues

    models, _ = catalogues()
    imported = importing.import_rows(rows, study_dir, _clusters(), models)
    for sentence in imported.sentences:
        typer.echo(printable(sentence), err=True)
    following = f"scaling report {shlex.quote(str(study_dir))}"
    typer.echo(f"{imported.rows} published rows -> {study_dir}; next: {following}")


def convert(
    logs: Annotated[list[Path], typer.Argument(metavar="LOG... OUT", help="Logs, then the table.")],
    tool: Annotated[str, typer.Option(help="megatron, nemo, mlperf, torchtitan or nccl-tests.")],
    cluster: Annotated[str, typer.Option(help="A cluster of config/clusters.yaml, or a GPU.")],
    column: Annotated[
        list[str] | None, typer.Option(help="A value that the logs lack, NAME=VALUE; repeatable.")
    ] = None,
) -> None:
    """Convert logs of other tools to rows, or nccl-tests to probes, as a Parquet table."""
    from scaling.foreign.logs.tools import TOOLS, read_logs
    from scaling.record.files import write_table

    check_choice("--tool", tool, TOOLS)
    *sources, out = logs
    if not sources or out.suffix != ".parquet":  # which would replace the last log
        raise InputError(f"{out}: give at least one log, and last the table to write: OUT.parquet")
    stated = {"cluster": cluster}
    for pair in column or []:
        name, equals, value = pair.partition("=")
        if not equals:
            raise InputError(f"--column {shortened(pair)}: give NAME=VALUE")
        stated[name] = value
    table = read_logs(sources, tool, stated)
    write_table(out, table)
    kind = "probes" if tool == "nccl-tests" else "rows"
    typer.echo(f"{len(sources)} logs: {table.num_rows} {kind} -> {out}")


def compare(
    before: StudyDir,
    after: OtherStudyDir = None,
    split: Annotated[
        datetime.datetime | None,
        typer.Option(
            formats=["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S"],
            help="A UTC date: compare rows before it with rows from it on.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare two studies, or two periods of one: what changed beyond the noise."""
    from scaling.analyse.compare import Side
    from scaling.analyse.compare import compare as side_by_side
    from scaling.report.page import comparison

    if after is None and split is None:
        raise InputError(f"{before}: to compare a study with itself, give --split 2026-11-20")
    at = None if split is None else split.isoformat()
    records = side_by_side(Side(before, until=at), Side(after or before, since=at))
    comparison.show(records, as_json=as_json)


def _clusters() -> "dict[str, Cluster]":
    """The site's clusters, for their prices; none where this folder has no config."""
    from scaling.study.load import load_clusters
    from scaling.study.paths import CONFIG

    return load_clusters() if (CONFIG / "clusters.yaml").is_file() else {}
