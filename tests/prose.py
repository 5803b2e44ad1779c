"""Places in documents and docstrings that are hard to read: `python -m tests.prose` lists them.

A sentence has at most 25 words and begins with its subject. A private word has a common one.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

LONGEST = 25  # words of a sentence
BACKWARDS = re.compile(r"(?:^|(?<=[.!?] ))(?:Of (?!course)|Whoever|What (?!if)|Where )[^?]*?[.,;:]")
PRIVATE = {
    r"tell\w* apart|told apart": "significantly different",
    r"set\w* aside": "excluded, moved",
    r"strays?": "orphan",
    r"rivals?": "candidate",
    r"odds": "probability",
    r"unfit": "excluded host",
    r"likewise|thereby|lest|thereof|foretold": "too, so",
    r"(?:is|are|was|were) none": "is not, None if",
    r"says? so": "prints, records",
}


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Line and text of each paragraph of prose in a document or a module."""
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                for paragraph in filter(None, (ast.get_docstring(node) or "").split("\n\n")):
                    if not re.search(r"^    |\S {3,}\S", paragraph):  # commands, columns, pictures
                        yield node.body[0].lineno, " ".join(paragraph.split())
        return
    source = re.sub(
        r"^```.*?^```", lambda code: "\n" * code[0].count("\n"), source, flags=re.M | re.S
    )
    for match in re.finditer(
        r"^(?![#|<]|    )\S.*?(?=\n\n|\n *[-*|#<] |\n\d\. |\Z)", source, re.M | re.S
    ):
        prose = re.sub(r"^([-*]|\d\.) ", "", " ".join(match[0].split()))
        yield source.count("\n", 0, match.start()) + 1, prose


def faults(prose: str) -> Iterator[str]:
    """Each fault of a paragraph, with its words."""
    plain = re.sub(r"`[^`]*`|\([^()]*\)", "x", prose)
    for sentence in re.split(r"(?<=[.!?;:]) ", plain):
        if len(sentence.split()) > LONGEST:
            yield f"{len(sentence.split())} words: {sentence}"
    for match in BACKWARDS.finditer(plain):
        yield f"begins backwards: {match[0][:70]}"
    for word, common in PRIVATE.items():
        for match in re.finditer(rf"\b(?:{word})\b", plain):
            yield f"{match[0]} -> {common}"


def main() -> None:
    """List the faults of all tracked files; exit code 1 if there are any."""
    tracked = subprocess.run(
        ["git", "ls-files", "*.md", "*.py"], capture_output=True, text=True, check=True
    )
    found = [
        f"{name}:{line}: {fault}"
        for name in tracked.stdout.splitlines()
        if Path(name).exists()
        for line, prose in texts(Path(name))
        for fault in faults(prose)
    ]
    sys.stdout.writelines(f"{one}\n" for one in found)
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
