"""`write_report`: tables become sentences, charts and one page that needs no network."""

import hashlib
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from scaling.record.files import write_bytes, write_text
from scaling.report.charts.svg import bundle, chart_files, png
from scaling.report.page.html import page_html
from scaling.report.page.multiqc import write_multiqc
from scaling.report.sections.story import story
from scaling.report.sections.study import engine_section, order_section, replication_section
from scaling.report.tables import page_text, read_tables
from scaling.study.paths import StudyPaths

_LONGEST_NAME = 120  # of the 255 that a file system allows


def write_report(study_dir: Path, reports_dir: Path, *, charts: bool = True) -> Path:
    """Write report.html, scaling_mqc.json, charts/*.svg and *.png of a study from its tables.

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
        tables = read_tables(study_dir)
        study = page_text(study_dir.name)
        selections = [tables.of(setting["setting_id"]) for setting in tables["settings"]]
        stories = [story(selection) for selection in selections]
        sections = {
            "engines": engine_section(tables),
            "order": order_section(tables),
            "replication": replication_section(study_dir),
        }
        svgs: dict[int, dict[str, str]] = {
            told["setting_id"]: dict(chart_files(selection, told, study)) if charts else {}
            for selection, told in zip(selections, stories, strict=True)
        }
        _write_charts(paths.charts, stories, svgs)
        write_multiqc(study_dir, tables)
        html = page_html(study, tables, stories, sections, svgs, reports_dir, vega)
        write_text(paths.report, html)
    return paths.report


def _write_charts(
    charts_dir: Path, stories: list[dict[str, Any]], svgs: Mapping[int, Mapping[str, str]]
) -> None:
    """Write each chart as SVG and PNG, and remove those of a former report."""
    written = set()
    for told in stories:
        selection = f"{told['setting_id']}-{told['model']}-{told['cluster']}-"
        for chart, text in svgs[told["setting_id"]].items():
            name = file_name(f"{selection}{chart}" if len(stories) > 1 else chart)
            write_text(charts_dir / f"{name}.svg", text)
            write_bytes(charts_dir / f"{name}.png", png(text))
            written |= {f"{name}.svg", f"{name}.png"}
    for path in (*charts_dir.glob("*.svg"), *charts_dir.glob("*.png")):
        if path.name not in written:
            path.unlink()


def file_name(words: str) -> str:
    """A safe file name, whatever the words: names of models and panels come from outside."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "_", words).lstrip(".") or "_"
    if len(name) <= _LONGEST_NAME:
        return name
    digest = hashlib.sha256(words.encode("utf-8", errors="replace")).hexdigest()[:8]
    return f"{name[: _LONGEST_NAME - 9]}-{digest}"
