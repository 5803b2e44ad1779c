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
    report = opened(quickstart.results / "report.html", viewport={"width": width, "height": 900})
    figures = report.page.evaluate(
        """() => [...document.querySelectorAll('figure[data-chart]')]
        .filter(figure => figure.offsetWidth)
        .map(figure => [figure.querySelectorAll('svg path').length, figure.innerText])"""
    )
    assert len(figures) >= 5
    assert min(marks for marks, _ in figures) > 3
    assert report.errors == []
    assert report.requests == []
    answer = report.page.inner_text(".selection:visible h2")
    assert answer.startswith("Measured: ")
    assert len(answer.split()) <= 30
    assert "ZeRO-2 and ZeRO-3 are incompatible with pipeline parallelism" in report.page.content()
    assert report.page.evaluate("document.documentElement.scrollWidth") <= width
