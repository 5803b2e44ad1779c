"""What the shell around a rank leaves behind: how the rank ended, in a file of its own.

The shell writes `<folder>/<rank>` with the exit code, beside and renamed. A folder that all nodes
see is all that is needed; nothing is asked over the network.
"""

import time
from pathlib import Path

_LISTING_LAG_S = 5.0  # of a shared file system


class Seats:
    """The exit codes that the ranks' shells leave in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._silent_since: float | None = None

    def codes(self) -> dict[int, int]:
        """Exit code by rank, for those that have said it; -n says killed by signal n."""
        return {
            int(path.name): signed(int(path.read_text()))
            for path in self._folder.iterdir()
            if path.name.isdigit()
        }

    def without_a_word(self, ranks: range, code: int) -> dict[int, int]:
        """The ranks that cannot say how they ended any more, with the code of what held them.

        Empty until a shared file system must have shown what they said.

        Args:
            ranks: those whose shells have surely ended.
            code: what is said of them.
        """
        silent = [rank for rank in ranks if not (self._folder / str(rank)).exists()]
        if not silent:
            return {}
        if self._silent_since is None:
            self._silent_since = time.monotonic()
        if time.monotonic() - self._silent_since < _LISTING_LAG_S:
            return {}
        return dict.fromkeys(silent, code)


def signed(code: int) -> int:
    """A shell says 128 + n of what signal n has ended."""
    return 128 - code if code > 128 else code


def last_line(log: Path) -> str | None:
    """The last line in a log that is not blank."""
    text = log.read_text(encoding="utf-8", errors="replace")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else None
