"""`scaling export`: pack a study's results into one file, with a description of it (RO-Crate).

It holds nothing private: tables and page are made from copies in which absolute paths are cut to
their last part and the user's name becomes `user`. Host names stay, as the report is about them.
Rows and logs are left out, as they hold whatever a rank printed.
"""

import getpass
import json
import re
import shlex
import shutil
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from rocrate.rocrate import ROCrate

import scaling
from scaling.analyse.parquet_views import unreadable_error
from scaling.errors import InputError
from scaling.record.files import write_bytes, write_table, write_text
from scaling.report.page.page import write_report
from scaling.study.paths import StudyPaths
from scaling.study.study import read_study_info

# An absolute path of at least two parts, not the tail of a URL or of a relative path.
_PATH = re.compile(r"(?<![\w.:/~-])~?/(?:[^\s/'\"<>:,;()]+/)+([^\s/'\"<>:,;()]+)")
_STUDY = "study.yaml"
_KINDS = {".html": "text/html", ".parquet": "application/vnd.apache.parquet"}
_SHORTEST_NAME = 3  # of a user that is replaced; shorter names, and root, are ordinary words


def export(study_dir: Path, out: Path, reports: Path) -> list[str]:
    """Write a study's tables, page and study file into a zip with `ro-crate-metadata.json`.

    Returns:
        The names of the files in it.

    Raises:
        InputError: the study has no tables or a broken one, or `out` is no .zip in an existing
            folder.
    """
    paths = StudyPaths(study_dir)
    if not any(paths.tables.glob("*")):
        raise InputError(
            f"{paths.tables}: empty; `scaling tabulate {shlex.quote(str(study_dir))}` fills it"
        )
    if out.suffix != ".zip" or not out.absolute().parent.is_dir():
        raise InputError(f"{out}: must be a .zip in an existing folder")
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / study_dir.resolve().name
        _copy(paths, StudyPaths(copy))
        write_report(copy, reports, charts=False)
        names = _describe(copy, read_study_info(study_dir).title or copy.name, reports / "sql")
        packed = shutil.make_archive(str(Path(folder) / "packed"), "zip", copy)
        write_bytes(out, Path(packed).read_bytes())
    return names


def scrub(text: str, user: str | None = None) -> str:
    """The text with absolute paths cut to their last part and the user's name made `user`."""
    user = user or getpass.getuser()
    text = _PATH.sub(r"\1", text)
    if len(user) < _SHORTEST_NAME or user == "root":
        return text
    return re.sub(rf"(?<![\w-]){re.escape(user)}(?![\w-])", "user", text)


def _copy(source: StudyPaths, copy: StudyPaths) -> None:
    copy.tables.mkdir(parents=True)
    for path in sorted(source.tables.glob(source.table("*").name)):
        write_table(copy.tables / path.name, _scrubbed(path))
    for path in (source.points_table, source.refused, source.published, source.predictions):
        if path.exists():
            write_table(copy.folder / path.name, _scrubbed(path))
    about = read_study_info(source.folder)
    facts = about.model_dump() | {"file": about.file and Path(about.file).name}
    write_text(copy.study, scrub(json.dumps(facts, indent=1)) + "\n")
    if about.file and Path(about.file).is_file():
        text = Path(about.file).read_text(encoding="utf-8")
        write_text(copy.folder / _STUDY, scrub(text))


def _scrubbed(path: Path) -> pa.Table:
    try:
        table = pq.read_table(path)
    except pa.ArrowException as error:
        raise unreadable_error([path], error) from None
    for place, field in enumerate(table.schema):
        if pa.types.is_string(field.type) or pa.types.is_large_string(field.type):
            cells = [cell and scrub(cell) for cell in table.column(place).to_pylist()]
            table = table.set_column(place, field, pa.array(cells, field.type))
    return table


def _describe(folder: Path, title: str, sql: Path) -> list[str]:
    """Write ro-crate-metadata.json for the folder; returns the names of all files."""
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
        entry = {
            "name": name,
            "description": meanings.get(folder / name) or _grain(sql / f"{Path(name).stem}.sql"),
            "encodingFormat": _KINDS.get(Path(name).suffix),
        }
        known = {key: fact for key, fact in entry.items() if fact}
        crate.add_file(folder / name, name, properties=known)
    crate.metadata.write(folder)
    return [*names, "ro-crate-metadata.json"]


def _grain(sql: Path) -> str | None:
    """The description in the first line of a table's SQL file; None for other tables."""
    if not sql.is_file():
        return None
    first = sql.read_text(encoding="utf-8").splitlines()[0]
    return first.removeprefix("--").strip().removeprefix("Grain:").strip()
