"""What the shell around a rank leaves behind: how the rank ended, in a file of its own.

The shell writes `<folder>/<rank>`, beside and renamed: the exit code, and how many processes the
kernel's out-of-memory killer has ended there meanwhile. A folder that all nodes see is all that is
needed; nothing is asked over the network.
"""

import time
from pathlib import Path

from scaling.launch.start.oom_killer import OOM_KILLS
from scaling.launch.start.starter import End

_LISTING_LAG_S = 5.0  # of a shared file system

# Shell before a rank, and after it: its code is in $code, its number in $RANK, and $folder.
BEFORE = f"""{OOM_KILLS}
before=$(oom_kills "")
"""
AFTER = """\
kills=0
[ $code != 137 ] || kills=$(($(oom_kills "") + 0 - before))
echo $code $kills > "$folder/.$RANK"
mv "$folder/.$RANK" "$folder/$RANK"
"""


class RankExits:
    """The exit codes that the ranks' shells leave in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._silent_since: float | None = None

    def ends(self) -> dict[int, End]:
        """How each rank ended, for those that have said it."""
        return {
            int(path.name): _end(path.read_text())
            for path in self._folder.iterdir()
            if path.name.isdigit()
        }

    def without_a_word(self, ranks: range, end: End) -> dict[int, End]:
        """The ranks that cannot say how they ended any more, with the end of what held them.

        Empty until a shared file system must have shown what they said.

        Args:
            ranks: those whose shells have surely ended.
            end: what is said of them.
        """
        silent = [rank for rank in ranks if not (self._folder / str(rank)).exists()]
        if not silent:
            return {}
        if self._silent_since is None:
            self._silent_since = time.monotonic()
        if time.monotonic() - self._silent_since < _LISTING_LAG_S:
            return {}
        return dict.fromkeys(silent, end)


def _end(text: str) -> End:
    code, kills = text.split()
    return End(signed(int(code)), out_of_memory=int(kills) > 0)


def signed(code: int) -> int:
    """A shell says 128 + n of what signal n has ended; there are 64."""
    return 128 - code if 128 < code <= 192 else code


def last_line(log: Path) -> str | None:
    """The last line in a log that is not blank."""
    text = log.read_text(encoding="utf-8", errors="replace")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else None
