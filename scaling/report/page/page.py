"""Tables, sentences and charts become one page that needs no network."""

import hashlib
import json
import re
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jinja2

from scaling.errors import InputError
from scaling.layout.axes import AXES
from scaling.record.files import write_bytes, write_text
from scaling.report.charts.charts import CHARTS
from scaling.report.charts.marks import CONFIG, FONT
from scaling.report.charts.palette import css
from scaling.report.charts.svg import bare, chart_files, png
from scaling.report.charts.vega import bundle
from scaling.report.page.multiqc import write_multiqc
from scaling.report.sections.engines import engines
from scaling.report.sections.replication import replication
from scaling.report.sections.sentences import story
from scaling.report.tables import COLUMNS, MOST_ROWS, Tables, columnar, read_tables
from scaling.report.text import numbers
from scaling.report.text.captions import read_caption
from scaling.report.text.words import shown
from scaling.study.paths import StudyPaths

_LONGEST_NAME = 120  # of the 255 that a file system allows
PAGE_FILES = ("page.html.j2", "page.css", "page.js")


def write_report(study_dir: Path, reports_dir: Path, *, charts: bool = True) -> Path:
    """Write report.html, scaling_mqc.json, charts/*.svg and *.png of a study from its tables.

    Args:
        study_dir: results/<study>, tabulated.
        reports_dir: what people wrote: page/ and captions/.
        charts: write charts/* too; with many models they take longer than the page.

    Returns:
        The path of the page: one file, no request leaves it.

    Raises:
        InputError: tables, captions or the page's template are missing.
    """
    with ThreadPoolExecutor(1) as beside:
        return _write_report(study_dir, reports_dir, beside.submit(bundle), charts=charts)


def _write_report(study_dir: Path, reports_dir: Path, vega: Future[str], *, charts: bool) -> Path:
    tables = read_tables(study_dir)
    stories = []
    files: dict[str, str] = {}
    several = len(tables["settings"]) > 1
    for setting in tables["settings"]:
        mine = tables.of(setting["setting_id"])
        told = story(mine)
        stories.append(told)
        prefix = f"{_file_words(told)}-" if several else ""
        if charts:
            files |= {f"{prefix}{name}": text for name, text in chart_files(mine, told)}
    paths = StudyPaths(study_dir)
    _write_charts(paths.charts, files)
    write_multiqc(study_dir, tables)
    write_text(paths.report, _html(study_dir, tables, stories, reports_dir, vega))
    return paths.report


def _html(
    study_dir: Path,
    tables: Tables,
    stories: list[dict[str, Any]],
    reports_dir: Path,
    vega: Future[str],
) -> str:
    captions = {name: read_caption(reports_dir / "captions" / f"{name}.md") for name in CHARTS}
    charts = {
        name: {
            "spec": bare(chart),
            "table": chart.table,
            "needs": chart.needs,
            "perSize": chart.per_size,
            "unless": chart.unless,
            "missing": chart.missing,
            "where": dict(chart.where),
            "panel": chart.panel,
            "optional": chart.optional,
            "alt": captions[name].alt,
            "caption": captions[name].text,
        }
        for name, chart in CHARTS.items()
    }
    sources = {name: _source(reports_dir / "page" / name) for name in PAGE_FILES}
    template = _environment().from_string(sources["page.html.j2"])
    return template.render(
        study=shown(study_dir.name),
        replication=replication(study_dir),
        engines=engines(tables),
        stories=stories,
        tables=tables,
        refused=bool(tables["refused"]),
        done={
            name: sum(row[name] for row in tables["progress"])
            for name in ("points", "ok", "failed", "waiting", "predicted", "refusals")
        },
        most_rows=MOST_ROWS,
        cut=tables.cut,
        numbers=numbers,
        palette=css,
        font=FONT,
        style=sources["page.css"],
        script=_inline(sources["page.js"]),
        vega=_inline(vega.result()),
        data=_json({name: columnar(tables[name], columns) for name, columns in COLUMNS.items()}),
        charts=_json(charts),
        stories_json=_json(stories),
        axes=_json(
            [
                {
                    "key": name,
                    "title": axis.words.column,
                    "always": axis.words.leading,
                    "ranks": axis.ranks,
                    "later": axis.later,
                    "default": axis.default,
                }
                for name, axis in AXES.items()
            ]
        ),
        config=_json(CONFIG),
        formats=_json(numbers.FORMATS),
    )


def _environment() -> jinja2.Environment:
    """Every value is escaped; only what this module made by `_json` and `_inline` is not."""
    return jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )


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


def _file_words(told: dict[str, Any]) -> str:
    return f"{told['setting_id']}-{told['model']}-{told['cluster']}"


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
