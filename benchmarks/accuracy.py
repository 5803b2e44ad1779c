"""Write the tables of the shipped rows into docs/prediction_accuracy.md.

    python benchmarks/accuracy.py

The tables are those of `scaling validate --published`.
"""

from dataclasses import dataclass
from pathlib import Path

from scaling.predict.fit.accuracy import Accuracy, accuracy_of, baseline_table_of, shipped_tasks
from scaling.predict.fit.accuracy import table_of as accuracy_table_of
from scaling.study.load import load_clusters

DOCUMENT = Path(__file__).parents[1] / "docs" / "prediction_accuracy.md"


@dataclass(frozen=True)
class Marked:
    """A part of docs/prediction_accuracy.md, between two marks, that a command writes."""

    begin: str
    end: str

    def part_of(self, text: str) -> str:
        """The part as it stands in `text`."""
        return text.split(self.begin, 1)[1].split(self.end, 1)[0].strip()

    def write(self, part: str) -> None:
        """Replace the part in the document."""
        text = DOCUMENT.read_text(encoding="utf-8")
        before, after = text.split(self.begin, 1)[0], text.split(self.end, 1)[1]
        DOCUMENT.write_text(
            f"{before}{self.begin}\n\n{part}\n\n{self.end}{after}", encoding="utf-8"
        )


TABLES = Marked("<!-- accuracy of the published rows -->", "<!-- end of it -->")


def lines() -> list[Accuracy]:
    """The accuracy of every shipped task."""
    return [accuracy_of(task, table, clusters=load_clusters()) for task, table in shipped_tasks()]


def tables_of(scored: list[Accuracy]) -> str:
    """Both tables in Markdown."""
    return "\n\n".join(
        markdown_of(cells) for cells in (accuracy_table_of(scored), baseline_table_of(scored))
    )


def markdown_of(cells: list[list[str]]) -> str:
    """Rows of cells, heads first."""
    heads, *body = cells
    rule = ["---"] * len(heads)
    return "\n".join(f"| {' | '.join(row)} |" for row in (heads, rule, *body))


if __name__ == "__main__":
    TABLES.write(tables_of(lines()))
