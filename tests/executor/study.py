"""A folder in which trivial points run under the plugin, and what is known of them from outside."""

import json
import shutil
import signal
import subprocess
from collections import Counter
from pathlib import Path

from tests.processes import until


class Study:
    """Points say when they start, and leave one file each."""

    def __init__(self, folder: Path, *files: Path) -> None:
        """The first of the files becomes the Snakefile."""
        self.folder = folder
        folder.mkdir()
        snakefile, *others = files
        shutil.copy(snakefile, folder / "Snakefile")
        for file in others:
            shutil.copy(file, folder)

    def points(self, **points: object) -> None:
        """The command and resources of each point, as the Snakefile has it."""
        (self.folder / "points.json").write_text(json.dumps(points))

    def snakemake(
        self, python: str, *options: str, environment: dict[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Snakemake in the background, in a session of its own as in another terminal.

        With what a user says, and says again after whatever happened.
        """
        command = [
            *(python, "-m", "snakemake", "--executor", "submitit", "--nolock"),
            *("--rerun-incomplete", "--keep-going", "--seconds-between-status-checks", "1"),
            *options,
        ]
        with (self.folder / "snakemake.log").open("ab") as log:
            return subprocess.Popen(
                command, cwd=self.folder, env=environment, stdout=log, stderr=subprocess.STDOUT,
                start_new_session=True,
                # a test run in the background of a shell ignores Ctrl-C, and so would its children
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
            )  # fmt: skip

    @property
    def said(self) -> str:
        """All that Snakemake printed."""
        return (self.folder / "snakemake.log").read_text()

    def starts(self) -> Counter[str]:
        """How often each point was started."""
        path = self.folder / "starts"
        return Counter(path.read_text().split()) if path.exists() else Counter()

    def wait_for_start(self, *points: str) -> None:
        """Until all of these points have been started."""
        until(f"{points} start", lambda: set(points) <= set(self.starts()))
