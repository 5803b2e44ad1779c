"""The first rows of a real GPU go through calibrate, predict, tabulate and report."""

import pytest
from typer.testing import CliRunner

from scaling.cli.verbs import app
from scaling.predict.fit import calibrate
from tests.analyse.conftest import read
from tests.conftest import PROJECT
from tests.h100 import PROBES, h100_study

pytestmark = pytest.mark.slow


def run(*words):
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, (result.output, result.exception)
    return result.output


def reported(study, *options):
    """Calibrate, predict, tabulate and report as the workflow does; the page."""
    points, calibration = study / "points.parquet", study / "calibration.json"
    run("calibrate", study / "rows", calibration, "--points", points, *options)
    run("predict", points, study / "predictions.parquet", "--calibration", calibration)
    run("report", study, "--reports", PROJECT / "reports", "--no-charts")
    return (study / "report.html").read_text(encoding="utf-8")


def test_every_row_of_the_gpu_stays_measured_up_to_the_page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    study = h100_study(tmp_path)
    page = reported(study, "--probes", PROBES)
    measured = [
        row
        for row in read(study / "tables" / "measurements.parquet")
        if row["source"] == "measured"
    ]
    assert [row["outcome"] for row in measured] == ["ok"] * 13
    assert "the fit failed" not in page


def test_a_report_is_made_and_says_so_where_the_fit_fails(tmp_path, monkeypatch):
    def fail(*_, **__):
        raise ValueError("operands could not be broadcast")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(calibrate, "calibrate", fail)
    page = reported(h100_study(tmp_path))
    assert "calibration.json: the fit failed (ValueError: operands could not be broadcast)" in page
