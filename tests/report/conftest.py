"""Reports of made-up studies, and one Chromium for all tests that open them."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from scaling.analyse.warehouse import tabulate
from scaling.report.page.page import write_report
from scaling.report.tables import Tables, read_tables
from scaling.study.grid import Plan
from tests.conftest import PROJECT
from tests.report.large_study import write_large_study
from tests.report.synthetic_study import cpu_plan, gpu_plan, write_study

REPORTS = PROJECT / "reports"
CHROMIUM = Path("/usr/bin/chromium")
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip

SMALL_AXES = {"tp": (1, 2), "pp": (1, 2), "zero_stage": (1, 3)}


def tabulated(folder: Path, *plans: Plan, **how: Any) -> Path:
    study = write_study(folder, *plans, **how)
    tabulate(study, REPORTS / "sql")
    return study


@pytest.fixture(scope="session")
def full_study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two models on GPUs, one on a CPU, every outcome, refusals; reported."""
    study = tabulated(
        tmp_path_factory.mktemp("reports") / "full", gpu_plan(axes=SMALL_AXES), cpu_plan()
    )
    write_report(study, REPORTS)
    return study


@pytest.fixture(scope="session")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a study of which a part is only predicted."""
    return write_large_study(tmp_path_factory.mktemp("large") / "study", REPORTS, charts=False)


@pytest.fixture(scope="session")
def full_tables(full_study: Path) -> Tables:
    return read_tables(full_study)


@pytest.fixture
def reported(tmp_path: Path) -> Callable[..., Path]:
    """The report of some plans."""

    def run(*plans: Plan, **how: Any) -> Path:
        return write_report(tabulated(tmp_path / "study", *plans, **how), REPORTS, charts=False)

    return run


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """One browser; Playwright only drives it, the browser is the system's."""
    if not CHROMIUM.exists():
        pytest.skip(f"{CHROMIUM} is missing: install the package chromium to test the report in it")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=FLAGS)
        yield browser
        browser.close()


class Opened:
    """A report in the browser, with its console errors and its requests."""

    def __init__(self, browser: Any, path: Path, *, fragment: str = "", **options: Any) -> None:
        """Open the page and wait until its script has run."""
        self.context = browser.new_context(**{"accept_downloads": True, **options})
        self.page = self.context.new_page()
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.page.on(
            "console", lambda said: self.errors.append(said.text) if said.type == "error" else None
        )
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.route("**/*", self._only_here)
        self.page.goto(f"{path.as_uri()}{fragment}")
        if options.get("java_script_enabled", True):
            self.page.wait_for_selector("html[data-ready]")

    def _only_here(self, route: Any) -> None:
        url = route.request.url
        if url.startswith(("file://", "data:", "blob:")):
            route.continue_()
        else:
            self.requests.append(url)
            route.abort()

    def select(self, option: str) -> None:
        """Choose a selection by the start of its words."""
        labels = self.page.locator("#pick option").all_inner_texts()
        self.page.select_option("#pick", label=next(one for one in labels if option in one))


@pytest.fixture
def opened(chromium: Any) -> Iterator[Callable[..., Opened]]:
    """Open reports; each is closed after the test."""
    pages: list[Opened] = []

    def run(path: Path, **options: Any) -> Opened:
        pages.append(Opened(chromium, path, **options))
        return pages[-1]

    yield run
    for one in pages:
        one.context.close()


@pytest.fixture(scope="module")
def looked_at(chromium: Any) -> Iterator[Callable[..., Opened]]:
    """Open each report once per test file, for tests that leave the page as they found it."""
    pages: dict[str, Opened] = {}

    def run(path: Path, **options: Any) -> Opened:
        key = repr((path, options))
        if key not in pages:
            pages[key] = Opened(chromium, path, **options)
        return pages[key]

    yield run
    for one in pages.values():
        one.context.close()


@pytest.fixture
def full(full_study: Path, opened: Callable[..., Opened]) -> Callable[..., Opened]:
    """Open the report of `full_study`."""
    return lambda **options: opened(full_study / "report.html", **options)
