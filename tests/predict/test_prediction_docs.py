import re
from pathlib import Path

from scaling.predict.read.parameters import PARAMETERS

TEXT = (Path(__file__).parents[2] / "docs" / "prediction.md").read_text(encoding="utf-8")


def test_the_table_of_parameters_says_what_the_code_says():
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \| (.+?) \| (.+?) \| (.+?) \| .+ \|$", TEXT, re.M)
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
