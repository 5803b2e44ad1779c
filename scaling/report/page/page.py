"""Tables, sentences and charts become one page that needs no network."""

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2

from scaling.errors import InputError
from scaling.layout.axes import AXES
from scaling.record.files import write_bytes, write_text
from scaling.report.charts.charts import CHARTS, charts_of
from scaling.report.charts.marks import CONFIG, FONT
from scaling.report.charts.palette import css
from scaling.report.charts.selection import drawn
from scaling.report.charts.svg import SERIES_KEY, bare, bundle, chart_files, parameters, png
from scaling.report.page import decision
from scaling.report.page.multiqc import write_multiqc
from scaling.report.sections.engines import engines
from scaling.report.sections.order import order
from scaling.report.sections.replication import replication
from scaling.report.sections.sentences import story
from scaling.report.tables import COLUMNS, Tables, columnar, read_tables
from scaling.report.text import numbers
from scaling.report.text.words import filled, shown
from scaling.study.paths import StudyPaths

_ALT = "Alt: "  # begins what a caption says to somebody who cannot see the chart
_LONGEST_NAME = 120  # of the 255 that a file system allows
TEMPLATES = (
    "page.html.j2",
    "decision.html.j2",
    "replication.html.j2",
    "engines.html.j2",
    "order.html.j2",
    "method.html.j2",
)
STYLES = ("page.css", "tables.css", "paper.css")
SCRIPTS = ("data.js", "filter.js", "table.js", "charts.js", "files.js", "budget.js", "page.js")

# The links beside the page, in its order; one whose section shows nothing is not there.
RAIL = (
    ("answer", "Answer"), ("overview", "All selections"), ("throughput", "Throughput"),
    ("returns", "Returns"), ("memory", "Memory"), ("time", "What bounds a step"),
    ("layouts", "Layouts of a size"), ("effects", "Effects"), ("cost", "Cost"),
    ("accuracy", "Prediction"), ("peers", "Other clusters"),
    ("collectives", "Links and devices"), ("order", "Odds and drift"),
    ("replication", "Replication"),
    ("statistics", "All points"), ("method", "Method"), ("downloads", "Downloads"),
)  # fmt: skip


def write_report(study_dir: Path, reports_dir: Path, *, charts: bool = True) -> Path:
    """Write report.html, scaling_mqc.json, charts/*.svg and *.png of a study from its tables.

    Args:
        study_dir: results/<study>, tabulated.
        reports_dir: what people wrote: page/ and captions/.
        charts: write charts/* too, and into the page what readers without JavaScript see of the
            first selection; with many models they take longer than the page.

    Returns:
        The path of the page: one file, no request leaves it.

    Raises:
        InputError: tables, captions or the page's template are missing.
    """
    with ThreadPoolExecutor(1) as beside:
        return _write_report(study_dir, reports_dir, beside.submit(bundle), charts=charts)


def _write_report(study_dir: Path, reports_dir: Path, vega: Future[str], *, charts: bool) -> Path:
    tables = read_tables(study_dir)
    study = shown(study_dir.name)
    selections = [tables.of(setting["setting_id"]) for setting in tables["settings"]]
    stories = [told(mine) for mine in selections]
    pictures: dict[int, dict[str, str]] = {}
    files: dict[str, str] = {}
    for mine, one in zip(selections, stories, strict=True):
        drawings = dict(chart_files(mine, one, study)) if charts else {}
        prefix = f"{_file_words(one)}-" if len(stories) > 1 else ""
        files |= {f"{prefix}{name}": text for name, text in drawings.items()}
        pictures[one["setting_id"]] = drawings
    paths = StudyPaths(study_dir)
    _write_charts(paths.charts, files)
    write_multiqc(study_dir, tables)
    write_text(paths.report, _html(study_dir, tables, stories, pictures, reports_dir, vega))
    return paths.report


def told(tables: Tables) -> dict[str, Any]:
    """What the page says and draws of one selection."""
    spoken = story(tables)
    price = float(spoken["advice"]["usd_per_gpu_hour"] or 0)
    cost = "Cost of the run ($)" if price else "{GPU}-hours of the run"
    return spoken | {
        "drawn": drawn(tables),
        "tokens": decision.tokens_of(spoken["advice"]),
        "price": price,
        "words": spoken["words"] | {"cost": filled(cost, spoken["words"])},
    }


def _html(
    study_dir: Path,
    tables: Tables,
    stories: list[dict[str, Any]],
    pictures: dict[int, dict[str, str]],
    reports_dir: Path,
    vega: Future[str],
) -> str:
    captions = {name: read_caption(reports_dir / "captions" / f"{name}.md") for name in CHARTS}
    charts = {
        name: {
            "spec": bare(chart),
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
    opening = decision.opening(stories) if stories else 0
    words: Mapping[str, str] = next(
        (one["words"] for one in stories if one["setting_id"] == opening), {}
    )
    static = pictures.get(opening, {})  # for readers without JavaScript
    page_dir = reports_dir / "page"
    template = _environment(page_dir).get_template(TEMPLATES[0])
    return template.render(
        study=shown(study_dir.name),
        replication=replication(study_dir),
        engines=engines(tables),
        order=order(tables),
        stories=stories,
        opening=opening,
        rail=RAIL,
        charts_of=charts_of,
        static=[_image(name, text, captions, words) for name, text in static.items()],
        decision=decision,
        tables=tables,
        refused=bool(tables["refused"]),
        done={
            name: sum(row[name] for row in tables["progress"])
            for name in ("points", "ok", "failed", "waiting", "predicted", "refusals")
        },
        cut=tables.cut,
        numbers=numbers,
        palette=css,
        font=FONT,
        style="".join(_source(page_dir / name) for name in STYLES),
        script=_inline("".join(_source(page_dir / name) for name in SCRIPTS)),
        vega=_inline(vega.result()),
        data=_json({name: columnar(tables[name], columns) for name, columns in COLUMNS.items()}),
        charts_json=_json(charts),
        stories_json=_json([one | {"parameters": parameters(one)} for one in stories]),
        axes=_json(
            [
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
        ),
        config=_json(CONFIG),
        formats=_json({**numbers.FORMATS, "series_key": SERIES_KEY}),
    )


@dataclass(frozen=True, slots=True)
class Caption:
    """`alt` says the axes to somebody who cannot see the chart, `text` how to read it."""

    alt: str
    text: str


def read_caption(path: Path) -> Caption:
    """Read a caption: a line `Alt: ...`, a blank line, then the text.

    Raises:
        InputError: the file is missing or does not start with its alt text.
    """
    try:
        alt, _, text = path.read_text(encoding="utf-8").partition("\n\n")
    except FileNotFoundError as error:
        raise InputError(f"{path}: is missing; every chart has a caption") from error
    if not alt.startswith(_ALT) or not text.strip():
        raise InputError(f"{path}: must start with '{_ALT}...', then a blank line and the caption")
    return Caption(alt=_flat(alt.removeprefix(_ALT)), text=_flat(text))


def _flat(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


def _environment(page_dir: Path) -> jinja2.Environment:
    """Every value is escaped; only what this module made by `_json` and `_inline` is not."""
    sources = {name: _source(page_dir / name) for name in TEMPLATES}
    return jinja2.Environment(
        loader=jinja2.DictLoader(sources),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _image(
    name: str, text: str, captions: dict[str, Caption], words: Mapping[str, str]
) -> dict[str, str]:
    """A chart as an image that the page holds: its words inside it are no part of the page's."""
    chart = max((one for one in CHARTS if name.startswith(one)), key=len)
    encoded = base64.b64encode(text.encode("utf-8")).decode("ascii")
    return {
        "uri": f"data:image/svg+xml;base64,{encoded}",
        "alt": filled(captions[chart].alt, words),
        "text": filled(captions[chart].text, words),
    }


def _json(value: Any) -> str:
    """JSON that cannot end the script element it stands in. Unknown is null, never NaN."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.replace("<", "\\u003c")


def _inline(script: str) -> str:
    """A script that cannot end its own element."""
    return script.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _source(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise InputError(f"{path}: is missing; the page is made of it") from error


def _file_words(story: dict[str, Any]) -> str:
    return f"{story['setting_id']}-{story['model']}-{story['cluster']}"


def _file_name(words: str) -> str:
    """A name of one file of the folder, whatever the words: models and panels come from outside."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "_", words).lstrip(".") or "_"
    if len(name) <= _LONGEST_NAME:
        return name
    digest = hashlib.sha256(words.encode("utf-8", errors="replace")).hexdigest()[:8]
    return f"{name[: _LONGEST_NAME - 9]}-{digest}"


def _write_charts(charts_dir: Path, files: dict[str, str]) -> None:
    """Write each as SVG and PNG; a chart that the tables no longer carry goes."""
    written = set()
    for name, text in ((_file_name(words), text) for words, text in files.items()):
        write_text(charts_dir / f"{name}.svg", text)
        write_bytes(charts_dir / f"{name}.png", png(text))
        written |= {f"{name}.svg", f"{name}.png"}
    for path in (*charts_dir.glob("*.svg"), *charts_dir.glob("*.png")):
        if path.name not in written:
            path.unlink()
