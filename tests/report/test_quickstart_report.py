"""The quickstart's own report, from rows that were really measured, in a real browser."""

import pytest

pytestmark = [
    pytest.mark.ranks,
    pytest.mark.snakemake,
    pytest.mark.browser,
    pytest.mark.timeout(2000),
]


@pytest.mark.parametrize("width", [1280, 400])
def test_it_draws_its_charts_says_nothing_wrong_and_asks_nobody(quickstart, opened, width):
    path = quickstart.results / "report.html"
    report = opened(path, viewport={"width": width, "height": 900})
    figures = report.page.evaluate(
        """() => [...document.querySelectorAll('figure[data-chart]')]
        .filter(figure => figure.offsetWidth)
        .map(figure => figure.querySelectorAll('svg path').length)"""
    )
    assert len(figures) >= 3
    assert min(figures) >= 2  # three sizes have two returns
    assert report.errors == []
    assert report.requests == []
    assert path.stat().st_size <= 400_000
    answer = report.page.inner_text(".selection:visible h2")
    assert answer.startswith(("Use ", "Not decided: "))
    assert len(answer.split()) <= 30
    assert report.page.inner_text("h1") == "Two small models on one machine"
    assert "ZeRO-2 and ZeRO-3 are incompatible with pipeline parallelism" in report.page.content()
    assert report.page.evaluate("document.documentElement.scrollWidth") <= width
