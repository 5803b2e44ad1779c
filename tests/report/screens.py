"""Every kind of page, photographed and measured, for people to look at; no test runs this.

    python -m tests.report.screens FOLDER [--published CSV ...] [--only WORD ...] [--looks NAME ...]

A picture of each page in each look lies in FOLDER/pictures, its paper as PDF beside it, and a
line for each says height in px, what is wider than the window, words that lie on one another, cut
words, small type, what axe finds and what the console says. Pages that are there are drawn anew
from their tables. The quickstart is photographed where it has run: it trains.
"""

import argparse
import dataclasses
import itertools
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from scaling.analyse.warehouse import tabulate
from scaling.importing.rows import import_rows
from scaling.record.files import point_columns, write_points, write_rows
from scaling.report.page.page import write_report
from tests.predict.reference import write_csv
from tests.report.conftest import CHROMIUM, FLAGS, REPORTS, tabulated
from tests.report.large_study import AXES, CLUSTERS, write_large_study
from tests.report.synthetic_study import SHAPES, cpu_plan, gpu_plan, grid, row, step_time_s

STUDIES = ("hardware_scaling", "parallel_layouts", "zero_stages")
ON_H100 = {"cluster": "h100-80gb-dgx", "attention": "flash2", "precision": "bf16"}
TWELVE = {
    "title": "Twelve models, which layout?", "kind": "strong", "mode": "predict",
    "axes": {
        **ON_H100, "world_size": [8, 16, 32, 64, 128, 256], "global_batch_size": 512,
        "seq_length": 4096,
        "model": ["llama3_1b", "llama3_3b", "llama2_7b", "llama2_13b", "llama2_70b", "llama_30b",
                  "llama_65b", "llama3_8b", "llama3_70b", "gpt_2b", "gpt_8b", "gpt_18b"],
    },
    "layouts": [
        {"zero_stage": [1, 3], "micro_batch_size": [1, 2]},
        {"tp": [2, 4, 8], "pp": [1, 2, 4, 8], "zero_stage": 1, "sequence_parallel": True},
    ],
}  # fmt: skip
NOTHING_FITS = {
    "title": "Nothing fits", "kind": "strong", "mode": "predict",
    "axes": {
        **ON_H100, "model": "llama3_405b", "world_size": [8, 16], "global_batch_size": 512,
        "seq_length": 4096, "zero_stage": [0, 1], "micro_batch_size": 1,
    },
}  # fmt: skip
LONG_NAME = "a-model-whose-name-nobody-would-type-twice-" * 2 + "<b>&\"'"
LONG_CLUSTER = "=cmd|calc " + "cluster-of-a-very-long-name-" * 2

# width, height, colours, paper or JavaScript
LOOKS: dict[str, tuple[int, int, str, str]] = {
    **{f"{theme}-{width}": (width, 860 if width < 500 else 900, theme, "live")
       for theme in ("light", "dark") for width in (1440, 1024, 400)},
    "print": (703, 1032, "light", "print"),  # A4 without its margins
    "plain": (1280, 900, "light", "plain"),
    "plain-dark": (400, 860, "dark", "plain"),
}  # fmt: skip

SMALLEST = {"live": 10, "plain": 10, "print": 7.9}  # px of type; on paper 6 points
FAULTS = Path(__file__).with_suffix(".js").read_text(encoding="utf-8")


def scaling(*command: str) -> None:
    subprocess.run([sys.executable, "-m", "scaling", *command], check=True)


def mixed(folder: Path) -> Path:
    """Measured, predicted and published rows of the same layouts, and sizes that have only one."""
    write_large_study(folder, REPORTS, charts=False)
    sizes = (8, 16, 32, 64)
    plan = gpu_plan(
        models=("llama-8b",), sizes=sizes, cluster="h100-80gb-dgx", axes=AXES, repeats=1
    )
    rows = [
        {name: value for name, value in point_columns(point).items() if name != "layout"}
        | {"outcome": "ok", "step_time_s": 1.1 * step_time_s(point), "source": "a paper"}
        for point in plan.points[::2]
    ]
    source = write_csv(folder / "published.csv", rows)
    import_rows(source, folder, CLUSTERS, {"llama-8b": SHAPES["llama-8b"]})
    tabulate(folder, REPORTS / "sql", clusters=CLUSTERS)
    return write_report(folder, REPORTS)


def failed(folder: Path) -> Path:
    """Points of which none ran, with a long message of each."""
    plan = gpu_plan(models=("llama-8b",), axes={"tp": (1, 2)}, repeats=1)
    write_points(folder, plan)
    message = "CUDA out of memory. Tried to allocate 2.00 GiB " * 8
    rows = [
        row(point, outcome, error_message=message)
        for point, outcome in zip(plan.points, itertools.cycle(("oom", "error")), strict=False)
    ]
    write_rows(folder / "rows" / "all.parquet", rows)
    tabulate(folder, REPORTS / "sql")
    return write_report(folder, REPORTS)


def names(folder: Path) -> Path:
    """Names that are too long, or markup, or a formula."""
    plan = gpu_plan(models=("llama-1b", "llama-8b"), axes={"tp": (1, 2), "zero_stage": (1, 3)})
    called = {"llama-1b": LONG_NAME, "llama-8b": "x"}
    points = tuple(
        dataclasses.replace(one, model=called[one.model], cluster=LONG_CLUSTER)
        for one in plan.points
    )
    study = tabulated(folder, dataclasses.replace(plan, points=points))
    return write_report(study, REPORTS)


def invented(*plans: Any, **how: Any) -> Callable[[Path], Path]:
    return lambda folder: write_report(tabulated(folder, *plans, **how), REPORTS)


ONE_POINT = grid(
    models=("llama-1b",), cluster="h100", gpu="h100-80gb", sizes=(1,), global_batch_size=8,
    seq_length=4096, axes={"tp": (1,)},
)  # fmt: skip
MADE: dict[str, Callable[[Path], Path]] = {
    "full": invented(gpu_plan(), cpu_plan()),
    "mixed": mixed,
    "names": names,
    "failed": failed,
    "waiting": invented(gpu_plan(), ran=0.0),
    "partial": invented(gpu_plan(), ran=0.4),
    "one_point": invented(ONE_POINT),
}


def predicted(study: str) -> Path:
    page = Path("results", Path(study).stem, "report.html")
    if page.exists():
        scaling("report", str(page.parent))
    else:
        scaling("run", study, "--mode", "predict")
    return page


def written(folder: Path, name: str, study: dict[str, Any]) -> Path:
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(study), encoding="utf-8")
    return predicted(str(path))


def published(folder: Path, rows: Path) -> Path | None:
    study = folder / rows.stem
    try:
        scaling("import", str(rows), str(study))
    except subprocess.CalledProcessError:
        return None  # a table as its source wrote it: the import has said what it lacks
    scaling("report", str(study))
    return study / "report.html"


def pages(folder: Path, tables: list[Path], wanted: Callable[[str], bool]) -> dict[str, Path]:
    """The pages by name, each drawn now."""
    makers: dict[str, Callable[[], Path | None]] = {
        name: lambda name=name: predicted(name) for name in STUDIES
    }
    makers["twelve"] = lambda: written(folder, "twelve", TWELVE)
    makers["nothing_fits"] = lambda: written(folder, "nothing_fits", NOTHING_FITS)
    makers |= {one.stem: lambda one=one: published(folder, one) for one in tables}
    for name, make in MADE.items():
        page = folder / name / "report.html"
        makers[name] = lambda make=make, page=page: (
            write_report(page.parent, REPORTS) if page.exists() else make(page.parent)
        )
    if Path("results/quickstart/report.html").exists():
        makers["quickstart"] = lambda: predicted("quickstart")
    drawn = {name: make() for name, make in makers.items() if wanted(name)}
    return {name: page.absolute() for name, page in drawn.items() if page}


def look(browser: Any, page: Path, look: str, picture: Path) -> dict[str, Any]:
    """Photograph a page in one look; what is wrong with it."""
    width, height, colours, mode = LOOKS[look]
    context = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme=colours,
        java_script_enabled=mode != "plain",
    )  # fmt: skip
    tab = context.new_page()
    errors: list[str] = []
    tab.on("pageerror", lambda error: errors.append(str(error)))
    tab.on(
        "console",
        lambda said: errors.append(said.text) if said.type in ("error", "warning") else None,
    )
    tab.goto(page.as_uri())
    if mode != "plain":
        tab.wait_for_selector("html[data-ready]")
    if mode == "print":
        paper = tab.pdf(path=picture.with_suffix(".pdf"), prefer_css_page_size=True)
        tab.emulate_media(media="print")
    if mode == "live":
        tab.screenshot(path=picture.with_suffix(".first.png"))
    tab.screenshot(path=picture.with_suffix(".png"), full_page=True)
    result: dict[str, Any] = {
        "height": tab.locator("html").bounding_box()["height"],
        **tab.evaluate(FAULTS, SMALLEST[mode]),
    }
    if mode == "print":
        result["pages"] = len(re.findall(rb"/Type\s*/Page[^s]", paper))
    if mode == "live" and width != 1024:
        from axe_playwright_python.sync_playwright import Axe

        violations = Axe().run(tab).response["violations"]
        result["axe"] = [f"{one['id']}: {one['nodes'][0]['html'][:100]}" for one in violations]
    context.close()
    return result | {"console": errors}


def main() -> None:
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--published", type=Path, nargs="*", default=[])
    parser.add_argument("--only", nargs="*", default=[], help="names of pages")
    parser.add_argument("--looks", nargs="*", default=list(LOOKS), choices=LOOKS)
    arguments = parser.parse_args()
    pictures = arguments.folder / "pictures"
    pictures.mkdir(parents=True, exist_ok=True)
    wanted = arguments.only
    drawn = pages(arguments.folder, arguments.published, lambda name: not wanted or name in wanted)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=FLAGS)
        for (name, page), one in itertools.product(drawn.items(), arguments.looks):
            result = look(browser, page, one, pictures / f"{name}.{one}.png")
            faults = {key: value for key, value in result.items() if value}
            sys.stdout.write(f"{name} {one} {faults}\n")
            sys.stdout.flush()
        browser.close()


if __name__ == "__main__":
    main()
