"""Captions: what people write about a chart, one Markdown file per chart."""

import re
from dataclasses import dataclass
from pathlib import Path

from scaling.errors import InputError

ALT = "Alt: "


@dataclass(frozen=True, slots=True)
class Caption:
    """`alt` says the axes to somebody who cannot see the chart, `text` how to read it."""

    alt: str
    text: str


def read_caption(path: Path) -> Caption:
    """Read a caption: a line `Alt: ...`, a blank line, then the text.

    Raises:
        InputError: the file is missing or does not start with its alt text.
    """
    try:
        alt, _, text = path.read_text(encoding="utf-8").partition("\n\n")
    except FileNotFoundError as error:
        raise InputError(f"{path}: is missing; every chart has a caption") from error
    if not alt.startswith(ALT) or not text.strip():
        raise InputError(f"{path}: must start with '{ALT}...', then a blank line and the caption")
    return Caption(alt=_flat(alt.removeprefix(ALT)), text=_flat(text))


def _flat(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()
