"""What the documents say of the prediction is what the code says."""

import re

import pytest

from benchmarks import accuracy
from scaling.foreign.reading import read_table
from scaling.predict.fit.trial import trial
from scaling.predict.read.parameters import PARAMETERS
from tests.conftest import PROJECT

pytestmark = pytest.mark.slow

NUMBER = re.compile(r"-?\d+\.?\d*")
DOCS = PROJECT / "docs"


def test_the_table_of_parameters_says_what_the_code_says():
    text = (DOCS / "formulas.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \| (.+?) \| (.+?) \| (.+?) \| .+ \|$", text, re.M)
    documented = {name: cells for name, *cells in rows}
    expected = {
        q.name: [
            f"{q.default:g} {q.unit}".removesuffix(" -"),
            f"{q.low:g} to {q.high:g}",
            f"{q.spread:g}",
            q.meaning,
        ]
        for q in PARAMETERS.values()
    }
    assert documented == expected


def test_every_key_of_validate_json_is_documented(sweep_csv):
    found = trial(read_table(sweep_csv), "sweep").to_dict()
    text = (DOCS / "prediction.md").read_text(encoding="utf-8")
    part = text.split("<!-- keys of validate -->", 1)[1].split("<!-- end of keys -->", 1)[0]
    documented = set(re.findall(r"`(\w+)`", part))
    keys = {*found, *found["groups"][0]}
    for name in ("step_time", "regret", "memory"):
        keys |= set(found[name])
    assert keys == documented


def test_the_accuracy_tables_are_what_the_published_rows_give():
    """Held to a point: a fit ends a little elsewhere on other machines."""
    written = accuracy.TABLES.part_of(accuracy.DOCUMENT.read_text(encoding="utf-8"))
    again = accuracy.tables_of(accuracy.lines())
    assert NUMBER.sub("#", written) == NUMBER.sub("#", again), "run python benchmarks/accuracy.py"
    numbers = zip(NUMBER.findall(written), NUMBER.findall(again), strict=True)
    assert all(abs(float(a) - float(b)) <= 1 for a, b in numbers), "run benchmarks/accuracy.py"
