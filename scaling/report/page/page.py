"""`write_report`: tables become one page that needs neither network nor script."""

import base64
import csv
import functools
import html
import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2

from scaling.errors import InputError
from scaling.layout.axes import AXES
from scaling.record.files import write_text
from scaling.report import text
from scaling.report.charts.charts import CHARTS
from scaling.report.charts.palette import CSS, FONT
from scaling.report.charts.svg import draw, fill_words, write_charts
from scaling.report.sections.replication import replication_section
from scaling.report.sections.story import matrix, story
from scaling.report.tables import COLUMNS, LISTS, Tables, page_text, read_tables
from scaling.study.paths import StudyPaths
from scaling.study.study import read_study_info

_ALT = "Alt: "  # starts the part of a caption that a screen reader says
TEMPLATES = ("page.html.j2", "parts.html.j2")
SCRIPTS = ("numbers.js", "points.js", "page.js")
MOST_ON_PAPER = 12  # selections printed whole; of more, each is a row of the matrix
_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # starts what a spreadsheet runs
_ZIP_DAY = (2026, 1, 1, 0, 0, 0)  # of its files, so that equal tables make equal pages


@dataclass(frozen=True, slots=True)
class Caption:
    """`alt` names the axes for a screen reader, `text` says how to read the chart."""

    alt: str
    text: str


def write_report(study_dir: Path, reports_dir: Path, *, charts: bool = True) -> Path:
    """The page of a tabulated study, which asks for no other file; with `charts` also charts/*.

    `reports_dir` has what people wrote. With many models charts take longer than the page.

    Raises:
        InputError: tables, captions or the page's template are missing.
    """
    paths = StudyPaths(study_dir)
    tables = read_tables(study_dir)
    captions = {name: read_caption(reports_dir / "captions" / f"{name}.md") for name in CHARTS}
    selections = [tables.of(group["group_id"]) for group in tables["comparison_groups"]]
    stories = [story(selection) for selection in selections]
    files: dict[str, str] = {}
    for told, selection in zip(stories, selections, strict=True):
        place = f"{told['id']}-{told['model']}-{told['cluster']}-" if len(stories) > 1 else ""
        told["figures"], told["missing"] = _figures(selection, captions, files, place)
    page_dir = reports_dir / "page"
    study = page_text(study_dir.name)
    written = _template(page_dir).render(
        study=study,
        title=page_text(read_study_info(study_dir).title or f"Scaling study {study}"),
        tables=tables,
        stories=stories,
        opening=opening_selection(stories),
        matrix=matrix(stories, selections),
        many=len(stories) > MOST_ON_PAPER,
        replication=replication_section(study_dir),
        progress={
            name: sum(row[name] for row in tables["progress"])
            for name in COLUMNS["progress"]
            if name != "group_id"
        },
        text=text,
        layouts_caption=read_caption(reports_dir / "captions" / "layouts.md"),
        palette=CSS,
        font=FONT,
        style=_source(page_dir / "page.css"),
        script=_inline("".join(_source(page_dir / name) for name in SCRIPTS)),
        embedded=_embedded(tables, stories),
        archive=_archive(tables),
    )
    write_text(paths.report, written)
    if charts:
        write_charts(paths.charts, files)
    return paths.report


def _figures(
    tables: Tables, captions: Mapping[str, Caption], files: dict[str, str], place: str
) -> tuple[list[dict[str, Any]], list[tuple[str, str]]]:
    """The charts of one selection, and those that it has no data for with the reason.

    Each drawing goes into `files` as well.
    """
    figures, missing = [], []
    for name, chart in CHARTS.items():
        drawings = chart.rows(tables)
        if not drawings:
            missing.append((name.replace("_", " "), fill_words(chart.missing, tables.words)))
        for drawing in drawings:
            svg = draw(name, drawing, tables.words)
            files["-".join(filter(None, (f"{place}{name}", drawing.panel)))] = svg
            caption = captions[name]
            alt = html.escape(f"{fill_words(caption.alt, tables.words)} {drawing.title}.")
            head = f'<svg role="img" tabindex="0" aria-label="{alt}" '
            figures.append(
                {
                    "name": name,
                    "title": drawing.title,
                    "caption": fill_words(caption.text, tables.words),
                    "svg": svg.replace(" aria-label=", " data-tip=").replace("<svg ", head, 1),
                }
            )
    return figures, missing


def _embedded(tables: Tables, stories: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The data of the page's scripts, as JSON by the name of its element."""
    axes = [
        {
            "key": name,
            "title": axis.text.column,
            "always": axis.text.always_column,
            "ranks": axis.multiplies_ranks,
            "default": axis.default,
        }
        for name, axis in AXES.items()
    ]
    data = {name: _by_column(tables, name) for name in LISTS}
    told = [one["data"] for one in stories]
    embedded = {"data": data, "axes": axes, "stories": told, "formats": text.FORMATS}
    return {name: _json(value) for name, value in embedded.items()}


def _by_column(tables: Tables, name: str) -> dict[str, Any]:
    """`rows`: their number; `columns`: values by column, a single one where all are equal."""
    rows = tables[name]
    columns: dict[str, Any] = {}
    for column in COLUMNS[name]:
        values = [row[column] for row in rows]
        same = bool(values) and all(value == values[0] for value in values)
        columns[column] = {"all": values[0]} if same else values
    return {"rows": len(rows), "columns": columns}


def _archive(tables: Tables) -> str:
    """The tables that the page is made of as CSV, in one zip, in base64."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", compresslevel=9) as archive:
        for name, columns in COLUMNS.items():
            rows = [[_inert(row[column]) for column in columns] for row in tables[name]]
            written = io.StringIO()
            csv.writer(written, lineterminator="\n").writerows([columns, *rows])
            file = zipfile.ZipInfo(f"{name}.csv", _ZIP_DAY)
            archive.writestr(file, written.getvalue(), zipfile.ZIP_DEFLATED)
    return base64.b64encode(packed.getvalue()).decode("ascii")


def _inert(cell: Any) -> Any:
    """A cell as text that no spreadsheet runs as a formula."""
    cell = ", ".join(cell) if isinstance(cell, list) else cell
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(_FORMULA) else cell


def opening_selection(stories: Sequence[Mapping[str, Any]]) -> int:
    """The group that the page opens with: one that ran before a prediction, then most sizes."""
    ranked = [
        (any(option["source"] != "predicted" for option in told["options"]), len(told["options"]))
        for told in stories
    ]
    return int(stories[ranked.index(max(ranked))]["id"]) if stories else 0


def read_caption(path: Path) -> Caption:
    """Read a caption: a line `Alt: ...`, a blank line, then the text.

    Raises:
        InputError: the file is missing or does not start with its alt text.
    """
    try:
        alt, _, caption = path.read_text(encoding="utf-8").partition("\n\n")
    except FileNotFoundError as error:
        raise InputError(f"{path}: is missing; every chart has a caption") from error
    if not alt.startswith(_ALT) or not caption.strip():
        raise InputError(f"{path}: must start with '{_ALT}...', then a blank line and the caption")
    return Caption(" ".join(alt.removeprefix(_ALT).split()), " ".join(caption.split()))


def _template(page_dir: Path) -> jinja2.Template:
    """The page's template. It escapes every value but SVG and those of `_json` and `_inline`."""
    return _compiled(tuple((name, _source(page_dir / name)) for name in TEMPLATES))


@functools.cache
def _compiled(sources: tuple[tuple[str, str], ...]) -> jinja2.Template:
    """The first of these templates, (name, text) each; compiling them takes as long as a page."""
    environment = jinja2.Environment(
        loader=jinja2.DictLoader(dict(sources)),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(TEMPLATES[0])


def _source(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise InputError(f"{path}: is missing; the page is made of it") from error


def _inline(script: str) -> str:
    """A script that cannot end its own element."""
    return script.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _json(value: Any) -> str:
    """JSON that cannot end the script element it stands in. Unknown is null, never NaN."""
    plain = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return plain.replace("<", "\\u003c")
