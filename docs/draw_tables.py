"""Draw docs/tables.svg: each table of a study, and the tables that it needs. `make docs` runs this.

Edges come from the queries of reports/sql/ and from the tables that Python computes.
"""

from graphlib import TopologicalSorter
from pathlib import Path

from scaling.analyse.drawn import INNER
from scaling.analyse.warehouse import COMPUTED, all_needs

ROOT = Path(__file__).parent.parent
PICTURE = Path(__file__).with_name("tables.svg")
WIDE, HIGH = 132, 26  # of a box
GAP, DEEP = 12, 34  # between boxes of a row, and between rows
STYLE = (
    "text{font:12px sans-serif;text-anchor:middle;fill:#1d1d1f}"
    "rect{fill:#dbe7fb;stroke:#2e5fb3}.inner rect{fill:#fff;stroke:#8a8a8f}"
    ".python rect{fill:#e2f1dc;stroke:#3f7d2c}path{fill:none;stroke:#8a8a8f}"
)


def direct(needs: dict[str, list[str]]) -> dict[str, list[str]]:
    """The needs of each table without those that another one of them needs as well."""
    above: dict[str, set[str]] = {}
    for name in TopologicalSorter(needs).static_order():
        above[name] = set(needs[name]).union(*(above[other] for other in needs[name]))
    return {
        name: sorted(n for n in all_ if not any(n in above[other] for other in all_))
        for name, all_ in needs.items()
    }


def rows(needs: dict[str, list[str]]) -> list[list[str]]:
    """The tables by the longest way from one without needs, near those that they need."""
    level: dict[str, int] = {}
    for name in TopologicalSorter(needs).static_order():
        level[name] = 1 + max((level[other] for other in needs[name]), default=-1)
    found: list[list[str]] = [[] for _ in range(max(level.values()) + 1)]
    place: dict[str, float] = {}
    for name in sorted(level, key=lambda name: (level[name], name)):
        found[level[name]].append(name)
    for row in found:
        above = {n: [place[other] for other in needs[n]] or [0.0] for n in row}
        row.sort(key=lambda n: (sum(above[n]) / len(above[n]), n))
        place |= {name: number / len(row) for number, name in enumerate(row)}
    return found


def picture() -> str:
    """The picture as SVG."""
    folder = ROOT / "reports" / "sql"
    outer = {path.stem: path.read_text(encoding="utf-8") for path in folder.glob("*.sql")}
    inner = {path.stem: path.read_text(encoding="utf-8") for path in folder.glob("inner/*.sql")}
    needs = direct(all_needs(outer | inner))
    drawn = rows(needs)
    width = (WIDE + GAP) * max(map(len, drawn)) + GAP
    at = {
        name: (round(width * (place + 0.5) / len(row) - WIDE / 2), 8 + number * (HIGH + DEEP))
        for number, row in enumerate(drawn)
        for place, name in enumerate(row)
    }
    parts = []
    for name, needed in sorted(needs.items()):
        x, y = at[name][0] + WIDE // 2, at[name][1]
        for a, b in (at[other] for other in needed):
            a, b, middle = a + WIDE // 2, b + HIGH, (b + HIGH + y) // 2
            parts.append(f'<path d="M{a} {b}C{a} {middle} {x} {middle} {x} {y}"/>')
    for name, (x, y) in sorted(at.items()):
        written = name in outer or (name in COMPUTED and name not in INNER)
        kind = "python" if name in COMPUTED else "table" if written else "inner"
        parts.append(
            f'<g class="{kind}"><rect x="{x}" y="{y}" width="{WIDE}" height="{HIGH}" rx="4"/>'
            f'<text x="{x + WIDE // 2}" y="{y + 17}">{name}</text></g>'
        )
    high = len(drawn) * (HIGH + DEEP)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {high}" role="img">'
    title = "<title>The tables of a study, each below those that it needs</title>"
    return "\n".join([f"{head}{title}<style>{STYLE}</style>", *parts, "</svg>\n"])


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
