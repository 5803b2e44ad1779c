"""Arguments and options that several verbs share, and functions that print JSON and tables."""

import bisect
import contextlib
import itertools
import json
import mmap
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scaling.errors import InputError, did_you_mean, printable, shortened
from scaling.study.paths import RESULTS, check_writable

if TYPE_CHECKING:
    from scaling.layout.layout import Layout


def opt(what: str, *names: str, **more: Any) -> Any:
    """An option with its help."""
    return typer.Option(*names, help=what, **more)


def arg(metavar: str, what: str, **more: Any) -> Any:
    """An argument with its name in the help, and its help."""
    return typer.Argument(metavar=metavar, help=what, **more)


def count(what: str) -> Any:
    """An option that is a number of ranks, sequences or tokens."""
    return opt(what, min=1, max=10_000_000)


StudyName = Annotated[str, arg("STUDY", "A name in config/studies, or a path to its YAML.")]


def _existing_folder(folder: Path | None) -> Path | None:
    """The folder itself; the study's name instead of its folder is a frequent mistake."""
    if folder is None or folder.is_dir():
        return folder
    meant = RESULTS / folder.stem
    hint = f"did you mean {meant}?" if meant.is_dir() else "give a folder with a study's results"
    raise InputError(f"{folder}: no such folder: {hint}")


_RESULTS_HELP = "The study's results, e.g. results/quickstart."
NewStudyDir = Annotated[Path, arg("STUDY_DIR", _RESULTS_HELP)]
StudyDir = Annotated[Path, arg("STUDY_DIR", _RESULTS_HELP, callback=_existing_folder)]
OtherStudyDir = Annotated[
    Path | None, arg("[AFTER]", "Another study; or give --split.", callback=_existing_folder)
]
Mode = Annotated[str | None, opt("measure or predict, overriding the study.")]
ClusterName = Annotated[str | None, opt("A cluster, overriding the study's.")]
Implied = Annotated[bool, opt("Do not start what a smaller micro-batch rules out.")]
CalibrationFile = Annotated[
    Path | None, opt("Without it data-sheet numbers.", "--calibration", "-c")
]
REHEARSE = "Count the memory of shown layouts near the GPU's limit by rehearsal, 4 to 15 s each."
AsJson = Annotated[bool, opt("Print JSON instead of a table.", "--json")]


def warn(sentence: str) -> None:
    """Print a line on stderr, whoever wrote it."""
    typer.echo(printable(sentence), err=True)


def print_assumptions(assumptions: Iterable[str]) -> None:
    """Say on stderr what was assumed, each sentence once."""
    for sentence in dict.fromkeys(assumptions):  # two columns may share one
        warn(f"assumed: {sentence}")


def say_batch(layout: "Layout", where: str = "") -> None:
    """Say on stderr the batch that was assumed."""
    batch = layout.global_batch_size
    tokens = f"{batch * layout.seq_length / 1e6:.3g} M tokens"
    print_assumptions([f"{where}{batch:,} sequences, {tokens} a step"])


def print_json(value: object) -> None:
    """Print JSON for scripts; unknown values are null."""
    typer.echo(json.dumps(value, indent=1, allow_nan=False))


def print_table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table: in full to a file or pipe, on a terminal as many first columns as fit.

    Columns of numbers are aligned on the right.
    """
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table

    body = [[printable(str(cell)) for cell in cells] for cells in rows]
    columns = list(zip(heads, *body, strict=True))
    widths = [max(map(cell_len, column)) + 3 for column in columns]
    ends = list(itertools.accumulate(widths, initial=1))[1:]
    console = Console(markup=False, highlight=False)
    if not console.is_terminal:
        console.width = ends[-1]
    fitting = bisect.bisect_right(ends, console.width)
    table = Table()
    for head, *column in columns[:fitting]:
        are_numbers = all(re.fullmatch(r"[\d,.]+|–", cell) for cell in column)
        table.add_column(head, justify="right" if are_numbers else "left")
    for cells in body:
        table.add_row(*cells[:fitting])
    console.print(table)
    if left_out := heads[fitting:]:
        console.print(
            f"too wide for this terminal: {', '.join(left_out)}; a file or a pipe gets all"
        )


def check_address_space(gib: int, what: str) -> None:
    """Refuse a process that may not reserve this much: libraries would end it by a signal.

    Raises:
        InputError: the limit of the address space is too low.
    """
    try:
        mmap.mmap(-1, gib * 2**30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=0).close()
    except OSError:
        raise InputError(
            f"{what} reserves {gib} GiB of address space (it uses much less memory), and this "
            "process may not: raise its limit with `ulimit -v unlimited`"
        ) from None


def check_output(out: Path, *read: Path | None) -> None:
    """Refuse an output that cannot be written, or would replace a file that it is made from.

    Raises:
        InputError: it is one of these.
    """
    same = False
    for path in filter(None, read):
        with contextlib.suppress(OSError, ValueError):  # who opens it says what is wrong
            same |= out.samefile(path)
    if same:
        raise InputError(f"{out}: would be replaced by what is made from it; name another file")
    check_writable(out)


def percent(share: float | None, digits: int = 1) -> str:
    """A share as a percentage for people."""
    return "–" if share is None else f"{100 * share:.{digits}f} %"


def check_choice(option: str, text: str, allowed: Iterable[str]) -> str:
    """Return the text if it is allowed.

    Raises:
        InputError: it is not; the sentence names the option.
    """
    if text not in (choices := list(allowed)):
        raise InputError(f"{option} {shortened(text)}: {did_you_mean(text[:60], choices)}")
    return text
