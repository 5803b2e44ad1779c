"""`write_report`: tables become sentences, charts and one page that needs no network."""

import base64
import functools
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2

from scaling.errors import InputError
from scaling.layout.axes import AXES
from scaling.record.files import write_text
from scaling.report import text
from scaling.report.charts.charts import CHARTS
from scaling.report.charts.palette import CONFIG, CSS, FONT
from scaling.report.charts.svg import bundle, chart_files, fill_words, specifications, write_charts
from scaling.report.page import decision
from scaling.report.sections.story import story
from scaling.report.sections.study import engine_section, replication_section
from scaling.report.tables import COLUMNS, Tables, page_text, read_tables
from scaling.study.paths import StudyPaths

_ALT = "Alt: "  # starts the part of a caption that a screen reader says
TEMPLATES = (
    "page.html.j2",
    "decision.html.j2",
    "replication.html.j2",
    "engines.html.j2",
    "method.html.j2",
)
STYLES = ("page.css", "tables.css", "paper.css")
SCRIPTS = ("data.js", "filter.js", "table.js", "charts.js", "files.js", "budget.js", "page.js")

# The links beside the page, in its order. A section that shows nothing has no link.
RAIL = (
    ("answer", "Answer"), ("overview", "All selections"), ("throughput", "Throughput"),
    ("returns", "Returns"), ("memory", "Memory"), ("time", "What bounds a step"),
    ("layouts", "Layouts of a size"), ("effects", "Effects"),
    ("accuracy", "Prediction"), ("collectives", "Links"), ("engines", "Engines"),
    ("replication", "Replication"), ("statistics", "All points"), ("method", "Method"),
    ("downloads", "Downloads"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Caption:
    """`alt` names the axes for a screen reader, `text` says how to read the chart."""

    alt: str
    text: str


def write_report(study_dir: Path, reports_dir: Path, *, charts: bool = True) -> Path:
    """Write report.html, charts/*.svg and *.png of a study from its tables.

    Args:
        study_dir: results/<study>, tabulated.
        reports_dir: what people wrote: page/ and captions/.
        charts: write charts/* too, and show those of the first selection to readers without
            JavaScript; with many models they take longer than the page.

    Returns:
        The path of the page, one file that asks for no other.

    Raises:
        InputError: tables, captions or the page's template are missing.
    """
    paths = StudyPaths(study_dir)
    with ThreadPoolExecutor(1) as executor:
        vega = executor.submit(bundle)
        specifications()  # built while the bundle is made
        tables = read_tables(study_dir)
        study = page_text(study_dir.name)
        selections = [tables.of(setting["setting_id"]) for setting in tables["settings"]]
        stories = [story(selection) for selection in selections]
        sections = {
            "engines": engine_section(tables),
            "replication": replication_section(study_dir),
        }
        svgs: dict[int, dict[str, str]] = {
            told["setting_id"]: chart_files(selection, told, study) if charts else {}
            for selection, told in zip(selections, stories, strict=True)
        }
        write_charts(paths.charts, stories, svgs)
        captions = {name: read_caption(reports_dir / "captions" / f"{name}.md") for name in CHARTS}
        opening = opening_selection(stories)
        page_dir = reports_dir / "page"
        html = _template(page_dir).render(
            study=study,
            tables=tables,
            stories=stories,
            opening=opening,
            **sections,
            chart_list=list(CHARTS.values()),
            pictures=_pictures(stories, svgs, captions, opening),
            rail=RAIL,
            decision=decision,
            text=text,
            progress={
                name: sum(row[name] for row in tables["progress"])
                for name in COLUMNS["progress"]
                if name != "setting_id"
            },
            palette=CSS,
            font=FONT,
            style="".join(_source(page_dir / name) for name in STYLES),
            script=_inline("".join(_source(page_dir / name) for name in SCRIPTS)),
            vega=_inline(vega.result()),
            embedded=_embedded(tables, stories, captions),
        )
    write_text(paths.report, html)
    return paths.report


def _embedded(
    tables: Tables, stories: list[dict[str, Any]], captions: Mapping[str, Caption]
) -> dict[str, str]:
    """What the scripts of the page read, as JSON by the name of its element."""
    # column names once and rows as arrays: a third of the size of records
    data = {
        name: {"columns": columns, "rows": [[row[key] for key in columns] for row in tables[name]]}
        for name, columns in COLUMNS.items()
    }
    charts = {
        name: {
            "spec": json.loads(specifications()[name]),
            "section": chart.section,
            "table": chart.table,
            "perSize": chart.per_size,
            "panel": chart.panel,
            "missing": chart.missing,
            "alt": captions[name].alt,
            "caption": captions[name].text,
        }
        for name, chart in CHARTS.items()
    }
    axes = [
        {
            "key": name,
            "title": axis.text.column,
            "always": axis.text.always_column,
            "ranks": axis.multiplies_ranks,
            "later": axis.added_later,
            "default": axis.default,
        }
        for name, axis in AXES.items()
    ]
    embedded = {"data": data, "charts": charts, "axes": axes, "stories": stories}
    embedded |= {"formats": text.FORMATS, "config": CONFIG}
    return {name: _json(value) for name, value in embedded.items()}


def opening_selection(stories: Sequence[Mapping[str, Any]]) -> int:
    """The setting that the page opens with: one that ran before a prediction, then most sizes."""

    def rank(story: Mapping[str, Any]) -> tuple[bool, int]:
        sizes = len(story["advice"]["at_size"])
        return sizes > 0 and story["basis"] != "predicted", sizes

    return int(max(stories, key=rank)["setting_id"]) if stories else 0


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
    """The page's template. It escapes every value but those of `_json` and `_inline`."""
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


def _pictures(
    stories: list[dict[str, Any]],
    svgs: Mapping[int, Mapping[str, str]],
    captions: Mapping[str, Caption],
    opening: int,
) -> list[dict[str, str]]:
    """The charts of the first selection as images, for readers without JavaScript."""
    pictures, words = [], {}
    for told in stories:
        if told["setting_id"] == opening:  # charts of one size are those of `shown_size`
            at_size = told["at_size"].get(str(told["shown_size"]), {})
            words = told["words"] | at_size.get("words", {})
    for file_name, svg in svgs.get(opening, {}).items():
        caption = captions[file_name.split("-")[0]]
        encoded = base64.b64encode(svg.encode("utf-8")).decode("ascii")
        pictures.append(
            {
                "uri": f"data:image/svg+xml;base64,{encoded}",
                "alt": fill_words(caption.alt, words),
                "text": fill_words(caption.text, words),
            }
        )
    return pictures


def _inline(script: str) -> str:
    """A script that cannot end its own element."""
    return script.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _json(value: Any) -> str:
    """JSON that cannot end the script element it stands in. Unknown is null, never NaN."""
    plain = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return plain.replace("<", "\\u003c")
