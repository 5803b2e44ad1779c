"""Report a rank's steps to its parent, seldom enough for a shared file system."""

import threading

from scaling.record.rank_files import RankFiles

# Seconds between a rank's reports: of the first rank of each node, by which the parent sees
# progress, and of the others, which it reads when none is made.
FIRST_EVERY_S, OTHERS_EVERY_S = 1.0, 10.0


class Beats:
    """Writes the last step that a rank has begun, from a thread of its own.

    A step of 2,048 ranks that each write a file would be thousands of calls to the file system. The
    thread also writes the step at which a rank then hangs.
    """

    def __init__(self, files: RankFiles, rank: int, *, every_s: float) -> None:
        self._files, self._rank, self._every_s = files, rank, every_s
        self._doing = self._written = ""
        self._begun = threading.Event()
        threading.Thread(target=self._run, daemon=True).start()

    def __call__(self, doing: str) -> None:
        """Say what the rank is doing from now on."""
        self._doing = doing
        self._begun.set()

    def _run(self) -> None:
        pause = threading.Event()
        while self._begun.wait():
            self._begun.clear()
            if self._doing != self._written:
                self._written = self._doing
                self._files.beat(self._rank, self._written)
            pause.wait(self._every_s)
