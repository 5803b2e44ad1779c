"""`scaling export`: what a study found as one file to hand on, with what it is (RO-Crate).

Nothing private goes with it: tables and page are made anew from copies in which paths of this
machine end in their last name and the user's own name is `user`. Names of hosts stay: the report is
about them. Rows and logs, which hold whatever a rank printed, are left at home.
"""

import getpass
import json
import re
import shutil
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from rocrate.rocrate import ROCrate

import scaling
from scaling.errors import InputError
from scaling.record.files import write_bytes, write_table, write_text
from scaling.report.page.page import write_report
from scaling.study.paths import StudyPaths
from scaling.study.study import read_study_info

# An absolute path of at least two parts, not the tail of a URL or of a relative one.
_PATH = re.compile(r"(?<![\w.:/~-])~?/(?:[^\s/'\"<>:,;()]+/)+([^\s/'\"<>:,;()]+)")
_STUDY = "study.yaml"
_KINDS = {".html": "text/html", ".parquet": "application/vnd.apache.parquet"}
_SHORTEST_NAME = 3  # of a user; shorter ones, and root, are words of their own


def export(study_dir: Path, out: Path, reports: Path) -> list[str]:
    """Write a study's tables, page and study file into a zip with `ro-crate-metadata.json`.

    Returns:
        The names of the files in it.

    Raises:
        InputError: the study has no tables, or `out` is no .zip in a folder that is there.
    """
    paths = StudyPaths(study_dir)
    if not any(paths.tables.glob("*")):
        raise InputError(f"{paths.tables}: holds no tables; scaling tabulate {study_dir} first")
    if out.suffix != ".zip" or not out.absolute().parent.is_dir():
        raise InputError(f"{out}: must be a .zip in a folder that is there")
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / study_dir.resolve().name
        _copy(paths, StudyPaths(copy))
        write_report(copy, reports, charts=False)
        names = _describe(copy, read_study_info(study_dir).title or copy.name, reports / "sql")
        packed = shutil.make_archive(str(Path(folder) / "packed"), "zip", copy)
        write_bytes(out, Path(packed).read_bytes())
    return names


def without_private(text: str, user: str | None = None) -> str:
    """A text whose paths of this machine are last names only, and whose user is `user`."""
    user = user or getpass.getuser()
    text = _PATH.sub(r"\1", text)
    if len(user) < _SHORTEST_NAME or user == "root":
        return text
    return re.sub(rf"(?<![\w-]){re.escape(user)}(?![\w-])", "user", text)


def _copy(source: StudyPaths, copy: StudyPaths) -> None:
    copy.tables.mkdir(parents=True)
    for path in sorted(source.tables.glob(source.table("*").name)):
        write_table(copy.tables / path.name, _scrubbed(pq.read_table(path)))
    for path in (source.points_table, source.refused, source.published, source.predictions):
        if path.exists():
            write_table(copy.folder / path.name, _scrubbed(pq.read_table(path)))
    about = read_study_info(source.folder)
    facts = about.model_dump() | {"file": about.file and Path(about.file).name}
    write_text(copy.study, without_private(json.dumps(facts, indent=1)) + "\n")
    if about.file and Path(about.file).is_file():
        text = Path(about.file).read_text(encoding="utf-8")
        write_text(copy.folder / _STUDY, without_private(text))


def _scrubbed(table: pa.Table) -> pa.Table:
    for place, field in enumerate(table.schema):
        if pa.types.is_string(field.type) or pa.types.is_large_string(field.type):
            cells = [cell and without_private(cell) for cell in table.column(place).to_pylist()]
            table = table.set_column(place, field, pa.array(cells, field.type))
    return table


def _describe(folder: Path, title: str, sql: Path) -> list[str]:
    """Write ro-crate-metadata.json over what lies in the folder; the names of all files."""
    paths = StudyPaths(folder)
    meanings = {
        paths.report: "The page: answers, charts and every point",
        paths.study: "What the study said to its report",
        folder / _STUDY: "The study as it was asked",
        paths.points_table: "Every point that was asked for",
        paths.refused: "Combinations that could not run, and why",
    }
    crate = ROCrate()
    crate.name = f"Scaling study: {title}"
    crate.description = (
        "Measured and predicted training steps of parallel layouts over GPU counts; tables are "
        "Parquet, report.html is one page that needs no network."
    )
    program = {"@id": "#training-scaling", "@type": "SoftwareApplication"}
    facts = {"name": "training-scaling", "softwareVersion": scaling.__version__}
    crate.root_dataset["generator"] = crate.add_jsonld(program | facts)
    names = [str(path.relative_to(folder)) for path in sorted(folder.rglob("*")) if path.is_file()]
    for name in names:
        stated = {
            "name": name,
            "description": meanings.get(folder / name) or _grain(sql / f"{Path(name).stem}.sql"),
            "encodingFormat": _KINDS.get(Path(name).suffix),
        }
        properties = {key: fact for key, fact in stated.items() if fact}
        crate.add_file(folder / name, name, properties=properties)
    crate.metadata.write(folder)
    return [*names, "ro-crate-metadata.json"]


def _grain(sql: Path) -> str | None:
    """What an SQL file says of its table in its first line; None where a function made it."""
    if not sql.is_file():
        return None
    first = sql.read_text(encoding="utf-8").splitlines()[0]
    return first.removeprefix("--").strip().removeprefix("Grain:").strip()
