"""Verbs from rows to a report: tables, the page, rows of others, comparisons."""

import datetime
import json
import shlex
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scaling.cli.options import (
    AsJson,
    NewStudyDir,
    OtherStudyDir,
    StudyDir,
    arg,
    check_address_space,
    check_choice,
    opt,
    warn,
)
from scaling.cli.trainer_log import row_of_log
from scaling.errors import InputError, counted, first_few, shortened
from scaling.study.inputs import local_or_shipped
from scaling.study.paths import StudyPaths

if TYPE_CHECKING:
    import pyarrow as pa


def tabulate(
    study_dir: StudyDir,
    sql: Annotated[Path, opt("The folder of SQL files.", callback=local_or_shipped)] = Path(
        "reports/sql"
    ),
) -> None:
    """Turn a study's rows into tables: one SQL file, one Parquet file."""
    check_address_space(4, "making tables")
    from scaling.analyse import replication, warehouse
    from scaling.predict.read.clusters import site_clusters
    from scaling.study.study import read_study_info

    unusable = warehouse.tabulate(study_dir, sql, clusters=site_clusters())
    for line in first_few([f"Left out: {one}" for one in unusable]):
        warn(line)
    replicates = read_study_info(study_dir).replicates
    if replicates is not None:
        replication.replicate(study_dir, sql.parent / replication.FOLDER / replicates)


def report(
    study_dir: StudyDir,
    reports: Annotated[Path, opt("Captions, SQL and page.", callback=local_or_shipped)] = Path(
        "reports"
    ),
    tables: Annotated[bool, opt("First make the tables again.")] = True,
    charts: Annotated[bool, opt("Write every chart as SVG and PNG.")] = True,
) -> None:
    """Write report.html from what has been measured so far."""
    check_address_space(68, "drawing charts")  # of which V8 takes 64 at first
    from scaling.report.page import page

    if tables:
        tabulate(study_dir, reports / "sql")
    typer.echo(f"The report: {page.write_report(study_dir, reports, charts=charts)}")


def import_(
    file: Annotated[Path, arg("FILE", "Rows as CSV, JSON, Parquet, or a rows/ folder.")],
    study_dir: NewStudyDir,
    rename: Annotated[
        list[str] | None, opt("Our name; none: ignore it.", metavar="THEIRS=OURS")
    ] = None,
    nccl_tests: Annotated[str | None, opt("FILE is nccl-tests' output.", metavar="CLUSTER")] = None,
    collective: Annotated[str | None, opt("Of nccl-tests whose output does not name it.")] = None,
    ranks: Annotated[int | None, opt("Of nccl-tests whose output does not tell.", min=2)] = None,
    trainer: Annotated[str | None, opt("FILE is a log of this program: one row.")] = None,
    column: Annotated[
        list[str] | None, opt("What a log does not say.", metavar="NAME=VALUE")
    ] = None,
    add: Annotated[bool, opt("Keep what was imported before.", "--add")] = False,
    replace: Annotated[bool, opt("Drop what was imported before.", "--replace")] = False,
) -> None:
    """Import rows in our columns and units into a study, as a source of their own.

    The output of nccl-tests becomes the study's probes, a log of a trainer one row.
    """
    from scaling.importing.rows import earlier_import, import_rows
    from scaling.predict.read.clusters import site_clusters, site_models

    following = f"{study_dir}; next: scaling report {shlex.quote(str(study_dir))}"
    paths = StudyPaths(study_dir)
    out = paths.published if nccl_tests is None else paths.probes
    earlier = earlier_import(out, add=add, replace=replace)
    if nccl_tests is not None:
        probes = _import_probes(file, out, earlier, nccl_tests, collective, ranks)
        typer.echo(f"{counted(probes, 'probe')} -> {following}")
        return
    names = {}
    for pair in rename or []:
        theirs, equals, ours = pair.rpartition("=")
        if not equals or theirs in names:
            once = " once" if equals else ""
            raise InputError(f"--rename {shortened(pair)}: give THEIRS=OURS{once}")
        names[theirs] = ours
    with tempfile.TemporaryDirectory() as folder:
        source = file
        if trainer is not None:
            source = Path(folder) / f"{file.name}.jsonl"
            source.write_text(json.dumps(row_of_log(file, trainer, column or [])) + "\n")
        table = import_rows(
            source, study_dir, site_clusters(), site_models(), earlier, rename=names
        )
    if table.remark:
        warn(table.remark)
    of = f" of {trainer}" if trainer is not None else ""
    typer.echo(f"{counted(table.rows.num_rows, 'row')}{of} -> {following}")


def _import_probes(
    file: Path,
    out: Path,
    earlier: "pa.Table",
    cluster: str,
    collective: str | None,
    ranks: int | None,
) -> int:
    """Write probes.parquet of a study; returns the number of new probes."""
    import pyarrow as pa

    from scaling.predict.read.clusters import site_clusters
    from scaling.probe.nccl_tests import read_nccl_tests
    from scaling.record.files import arrow_schema, table_of, write_table
    from scaling.record.probe_row import Probe

    clusters = site_clusters()
    check_choice("--nccl-tests", cluster, clusters)
    gpu, per_node = clusters[cluster].gpu, clusters[cluster].gpus_per_node
    probes = read_nccl_tests(
        file, cluster=cluster, gpu=gpu, gpus_per_node=per_node, collective=collective, ranks=ranks
    )
    added = table_of(probes, arrow_schema(Probe))
    write_table(out, pa.concat_tables([earlier, added], promote_options="default"))
    return len(probes)


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
    sql = local_or_shipped("reports/sql")
    records = side_by_side(Side(before, until=at), Side(after or before, since=at), sql)
    comparison.show(records, as_json=as_json)
