"""Write the accuracy tables of docs/prediction.md anew.

    python benchmarks/accuracy.py

Those of the rows that come along (`scaling validate --published`), between the two marks.
"""

from pathlib import Path

from scaling.predict.fit.accuracy import Accuracy, accuracy_of, baseline_table_of, shipped_tasks
from scaling.predict.fit.accuracy import table_of as accuracy_table_of
from scaling.study.catalogues import load_clusters

DOCUMENT = Path(__file__).parents[1] / "docs" / "prediction.md"
BEGIN, END = "<!-- accuracy of the published rows -->", "<!-- end of it -->"


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


def between_marks(text: str) -> str:
    """What stands between the marks."""
    return text.split(BEGIN, 1)[1].split(END, 1)[0].strip()


def main() -> None:
    """Replace what stands between the marks."""
    text = DOCUMENT.read_text(encoding="utf-8")
    before, after = text.split(BEGIN, 1)[0], text.split(END, 1)[1]
    middle = f"{BEGIN}\n\n{tables_of(lines())}\n\n{END}"
    DOCUMENT.write_text(before + middle + after, encoding="utf-8")


if __name__ == "__main__":
    main()
