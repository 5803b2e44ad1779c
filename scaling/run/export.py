"""`scaling export`: pack a study's tables and page for others, without what may be private.

All of it is made anew of rows that keep what is known to be safe: numbers, times, choices, versions
and the names of models, clusters and GPUs. Hosts are numbered. Free text is left out unless it is
asked for, and logs are left out. `scaling import` takes the rows.
"""

import json
import re
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from scaling.analyse.replication import FOLDER, replicate
from scaling.analyse.sources import unreadable_error
from scaling.analyse.warehouse import tabulate
from scaling.cluster.hardware import Cluster
from scaling.errors import InputError
from scaling.layout.axes import AXES
from scaling.record.files import write_bytes, write_table, write_text
from scaling.record.row_files import read_rows, row_files_in
from scaling.report.page.page import write_report
from scaling.study.paths import StudyPaths
from scaling.study.study import StudyInfo, read_study_info

# Columns of text, besides axes and versions, that hold names, words of ours, digests and times.
_SAFE = {
    "study", "study_kind", "point_id", "model", "family", "router", "cluster", "gpu", "gpu_name",
    "layout", "outcome", "clock", "memory_meter", "step_time_kind", "stopped", "git_commit",
    "started_at", "stack_fingerprint", "parameters_from", "calibrated_until",
    "predicted_peak_phase", "kind", "group", "reason",  # of a refusal, which we word
}  # fmt: skip
_HOSTS = {"host", "peer_host", "hosts", "excluded_hosts"}
_MESSAGES = {"error_message"}
# Text that may be a path, a mail address or a home; `org/model` is not one of them.
_PRIVATE = re.compile(r"[\\~]|\S@|(^|\s|:|\w/[^\s/]*)/|-I/")
_STUDY = "study.yaml"
_PRIVATE_KEYS = ("title", "slurm")


def export(
    study_dir: Path,
    out: Path,
    reports: Path,
    *,
    clusters: Mapping[str, Cluster] | None = None,
    with_messages: bool = False,
) -> list[str]:
    """Write a zip of a study's tables, page, plan and study file, and return its names.

    Args:
        study_dir: results/<study>, measured or imported.
        out: the zip.
        reports: SQL, captions and page.
        clusters: by name, for their prices.
        with_messages: keep messages of errors, the title and the comments of the study file.
    """
    if out.suffix != ".zip" or not out.absolute().parent.is_dir():
        raise InputError(f"{out}: must be a .zip in an existing folder")
    source = StudyPaths(study_dir)
    if not source.points_table.exists() and not source.published.exists():
        raise InputError(f"{study_dir}: holds no study; `scaling plan` and `scaling run` make one")
    with tempfile.TemporaryDirectory() as folder:
        copy = StudyPaths(Path(folder) / study_dir.resolve().name)
        about = _copy(source, copy, with_messages=with_messages)
        tabulate(copy.folder, reports / "sql", clusters=clusters)
        if about.replicates is not None:
            replicate(copy.folder, reports / FOLDER / about.replicates)
        write_report(copy.folder, reports, charts=False)
        names = sorted(
            str(path.relative_to(copy.folder)) for path in copy.folder.rglob("*") if path.is_file()
        )
        packed = Path(folder) / "packed.zip"
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
            for name in names:
                archive.write(copy.folder / name, name)
        write_bytes(out, packed.read_bytes())
    return names


def _copy(source: StudyPaths, copy: StudyPaths, *, with_messages: bool) -> StudyInfo:
    """Write what tables and page are made of, without what may be private."""
    hosts: dict[str, str] = {}
    rows = read_rows(sorted(row_files_in(source.rows))).table.drop_columns(["file"])
    tables = {copy.rows / "rows.parquet": rows} if rows.num_rows else {}
    files = (source.points_table, source.refused, source.published, source.predictions)
    for path in (*files, source.probes, *source.rounds()):
        if path.is_file():
            try:
                tables[copy.folder / path.relative_to(source.folder)] = pq.read_table(path)
            except (OSError, pa.ArrowException) as error:
                raise unreadable_error([path], error) from None
    for path, table in tables.items():
        write_table(path, _safe_table(table, hosts, with_messages=with_messages))
    about = read_study_info(source.folder)
    file = Path(about.file) if about.file else None
    facts = about.model_dump() | {"file": _STUDY if file else None}
    if file is not None and file.is_file():
        text = file.read_text(encoding="utf-8")
        if not with_messages:
            text = yaml.safe_dump(_safe_study(yaml.safe_load(text)), sort_keys=False)
        write_text(copy.folder / _STUDY, text)
    if not with_messages:
        facts["title"] = None
    write_text(copy.study, json.dumps(facts, indent=1) + "\n")
    return about


def _safe_table(table: pa.Table, hosts: dict[str, str], *, with_messages: bool) -> pa.Table:
    """The table with null in place of text that may be private, and numbers of hosts."""
    for place, field in enumerate(table.schema):
        is_list = pa.types.is_list(field.type)
        if not pa.types.is_string(field.type.value_type if is_list else field.type):
            continue
        cells = table.column(place).to_pylist()
        name = field.name
        if name in _HOSTS:
            cells = [_numbered(cell, hosts) for cell in cells]
        elif name in _SAFE or name in AXES or name.endswith("_version"):
            cells = [cell if cell is None else _safe_name(cell) for cell in cells]
        elif not (with_messages and name in _MESSAGES):
            cells = [None] * table.num_rows
        table = table.set_column(place, field.with_nullable(True), pa.array(cells, field.type))
    return table


def _numbered(cell: str | Sequence[str] | None, hosts: dict[str, str]) -> Any:
    """A host, or a list of them, as `host-1`."""
    if cell is None:
        return None
    if not isinstance(cell, str):
        return [_numbered(host, hosts) for host in cell]
    return hosts.setdefault(cell, f"host-{len(hosts) + 1}")


def _safe_name(text: str) -> str:
    return "private" if _PRIVATE.search(text) else text


def _safe_study(content: Any) -> Any:
    """The study without its title, its Slurm keys, comments and paths."""
    if isinstance(content, dict):
        return {
            _safe_study(key): _safe_study(value)
            for key, value in content.items()
            if key not in _PRIVATE_KEYS
        }
    if isinstance(content, list):
        return [_safe_study(value) for value in content]
    return _safe_name(content) if isinstance(content, str) else content
