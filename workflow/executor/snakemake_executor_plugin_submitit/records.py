"""Records on disk of what was submitted, which outlive kills, lost sessions and reboots.

    <root>/<batch>/                    one allocation: its script, pickles and log
    <root>/<batch>/pack.json           its jobs, written before it is sent
    <root>/<batch>/started.json        written in the allocation: it runs
    <root>/<batch>/<i>.running.json    job i was started, and where
    <root>/<batch>/<i>.finished.json   job i ended, and how
    <root>/<batch>/<i>.returned        job i was left for later; a byte for each time
    <root>/<batch>/<i>.withdrawn       job i is no longer wanted, or Snakemake knows its end
    <root>/<batch>/<i>.log             what job i printed
    <root>/<batch>/unusable.json       nothing can run on this host

The scheduler knows which batch a job of its belongs to. Snakemake's own record of a job's external
id is not used: it is null under --rerun-incomplete, and a child Snakemake overwrites it.
"""

import contextlib
import datetime
import hashlib
import json
import re
import shlex
import shutil
import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from .ownership import RECORDS, may_act_for
from .pack import write_json
from .request import Request
from .schedulers import Listed

_KEEP_S = 30 * 86400.0  # for people to look at failures
_BATCH = re.compile(r"\d{8}-\d{6}-[0-9a-f]{8}")  # only such folders are ever removed


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WantedJob:
    """A job that Snakemake wants run. One with the same `digest` is unchanged."""

    name: str
    key: str  # what it makes
    command: str
    digest: str
    request: Request
    outputs: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    snakemake_job: Any = None

    @property
    def limit_s(self) -> float:
        """Its time limit."""
        return 60.0 * self.request.runtime_min

    @property
    def asked(self) -> str:
        """Equal for jobs that need the same resources."""
        return digest_of(self.request.asked)

    def outputs_exist(self) -> bool:
        """Whether all that it makes is there."""
        return all(Path(output).exists() for output in self.outputs)


# The facts of a job that pack.json has.
_RECORDED = ("name", "key", "command", "digest", "limit_s", "asked", "environment", "outputs")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEnd:
    """How a job in a pack ended: its exit code, and whether the executor ended it."""

    code: int
    reason: str  # "ended", "time limit", or "memory limit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The place to which an earlier run has sent a job."""

    batch: Path
    number: int  # in the pack
    item: Mapping[str, Any]  # the job as it was recorded


def key_of(rule: str, wildcards: Mapping[str, str], outputs: Iterable[str]) -> str:
    """A job's name across runs of Snakemake: identifies what it makes, not how."""
    text = json.dumps([rule, sorted(wildcards.items()), sorted(outputs)])
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def digest_of(command: str, excluded: str = "") -> str:
    """A digest of a command, equal for commands that differ in white space only.

    `excluded`, the hosts to leave out as a word of the command, is no part of it: what runs already
    goes on when a slow host becomes known.
    """
    command = command.replace(f"={shlex.quote(excluded)}", "=")
    return hashlib.sha256(" ".join(command.split()).encode()).hexdigest()[:20]


class Records:
    """The files above. One executor writes them; allocations write their own.

    Users who share a directory share the folder. Batches of other users are left alone.
    """

    def __init__(self, root: Path = RECORDS) -> None:
        self.root = root.absolute()

    def new_batch(self) -> Path:
        """The folder of an allocation to come, with a unique name."""
        now = datetime.datetime.now(datetime.UTC)
        return self.root / f"{now:%Y%m%d-%H%M%S}-{uuid.uuid4().hex[:8]}"

    def write_pack(
        self,
        batch: Path,
        jobs: Iterable[WantedJob],
        *,
        directory: Path,
        environment: Mapping[str, str],
        outputs_are_complete: bool,
        restarts: int,
    ) -> None:
        """Record an allocation and its jobs, before it is submitted."""
        self.root.mkdir(parents=True, exist_ok=True)
        # its pickles are code that the scheduler runs as this user: nobody else may write them
        batch.mkdir(mode=0o700)
        pack = {
            "directory": str(directory),
            "environment": environment,
            "outputs_are_complete": outputs_are_complete,
            "restarts": restarts,
            "items": [{name: getattr(job, name) for name in _RECORDED} for job in jobs],
        }
        write_json(batch / "pack.json", pack)

    def items(self, batch: Path) -> list[dict[str, Any]] | None:
        """The jobs of an allocation as they were recorded; None without a record of this user."""
        pack = _read(batch / "pack.json") if _is_mine(batch) else None
        return None if pack is None else list(pack["items"])

    def places(self) -> dict[str, Place]:
        """The last place of each job, by its key, unless it was withdrawn there."""
        places: dict[str, Place] = {}
        for batch in self.batches():
            withdrawn = self.marked(batch, "withdrawn")
            for number, item in enumerate(self.items(batch) or ()):
                places.pop(item["key"], None)
                if number not in withdrawn:
                    places[item["key"]] = Place(batch=batch, number=number, item=item)
        return places

    def is_orphan(self, job: Listed) -> bool:
        """Whether this is a live job of this directory that has nothing to run.

        Its batch is unknown or withdrawn, or all of it has finished and it waits to start again.
        """
        if not job.state.live or not _BATCH.fullmatch(job.batch):
            return False
        batch = self.root / job.batch
        if self.items(batch) is None:
            return job.directory == str(Path.cwd()) and not batch.exists()
        stopped = self.marked(batch, "withdrawn") - self.finished(batch).keys()
        return not self.unfinished(batch) and (job.state.waits or bool(stopped))

    def read(self, batch: Path, name: str) -> dict[str, Any] | None:
        """The content of an allocation's file; None if it was not written to its end."""
        return _read(batch / name)

    def withdraw(self, batch: Path, numbers: Iterable[int]) -> None:
        """Note that jobs are no longer wanted from there, or that Snakemake has recorded their end.

        An allocation ends a job that runs, and does not start one that waits.
        """
        for number in numbers:
            # a full disk: who withdraws what runs has it cancelled too
            with contextlib.suppress(OSError):
                (batch / f"{number}.withdrawn").touch()

    def marked(
        self, batch: Path, kind: Literal["running.json", "returned", "withdrawn"]
    ) -> set[int]:
        """Numbers of the jobs of an allocation that have a file of this kind."""
        return set(_by_number(batch, kind))

    def finished(self, batch: Path) -> dict[int, JobEnd]:
        """The jobs of an allocation that have ended, by their number in the pack.

        Lists the folder instead of checking each name, as NFS caches that a name was missing.
        """
        read = {number: _read(path) for number, path in _by_number(batch, "finished.json").items()}
        return {
            number: JobEnd(code=record["code"], reason=record["reason"])
            for number, record in read.items()
            if record is not None
        }

    def unfinished(self, batch: Path) -> set[int]:
        """Numbers of the jobs that an allocation is running or has yet to run."""
        ended = self.finished(batch).keys() | self.marked(batch, "withdrawn")
        return set(range(len(self.items(batch) or ()))) - ended

    def makes(self, job: Listed, prefix: str) -> bool:
        """Whether a job of the scheduler makes a file whose name begins with `prefix`."""
        items = self.items(self.root / job.batch) or ()
        return any(name.startswith(prefix) for item in items for name in item["outputs"])

    def log_of(self, batch: Path, number: int) -> list[Path]:
        """Log files of a job and of its allocation."""
        logs = [batch / f"{number}.log", *sorted(batch.glob("*_log.out"))]
        return [log for log in logs if log.exists()]

    def last_words(self, batch: Path) -> str | None:
        """The last line that an allocation printed, "" if it printed none; None without a log."""
        logs = [path.read_text(errors="replace").split("\n") for path in batch.glob("*_log.out")]
        lines = [line.strip() for log in logs for line in log if line.strip()]
        return (lines or [""])[-1] if logs else None

    def remove(self, batch: Path) -> None:
        """Remove a batch. A job of it that was taken all the same is an orphan and runs nothing."""
        shutil.rmtree(batch, ignore_errors=True)  # a log held open on NFS stays

    def batches(self) -> list[Path]:
        """Every batch of this user on disk, oldest first."""
        try:
            named = [path for path in self.root.iterdir() if _BATCH.fullmatch(path.name)]
        except FileNotFoundError:
            return []
        return sorted(path for path in named if path.is_dir() and _is_mine(path))

    def tidy(self, listed: Iterable[Listed]) -> None:
        """Remove batches of which nothing is wanted, and old ones; never what may still run."""
        alive = {job.batch for job in listed if job.state.live}
        for batch in self.batches():
            with contextlib.suppress(FileNotFoundError):  # another run removes it too
                newest = max(path.stat().st_mtime for path in [batch, *batch.rglob("*")])
                is_old = time.time() - newest > _KEEP_S
                if batch.name not in alive and (is_old or self._is_done(batch)):
                    self.remove(batch)

    def _is_done(self, batch: Path) -> bool:
        """Whether Snakemake has recorded the end of all its jobs, and none has failed."""
        items, ends = self.items(batch), self.finished(batch).values()
        withdrawn = self.marked(batch, "withdrawn")
        return items is not None and len(withdrawn) == len(items) and not any(e.code for e in ends)


def _is_mine(batch: Path) -> bool:
    try:
        return may_act_for(batch.stat().st_uid)
    except OSError:  # another run of the same folder has removed it
        return False


def _by_number(batch: Path, kind: str) -> dict[int, Path]:
    """The files of one kind, by the number of their job."""
    return {int(path.name.split(".")[0]): path for path in batch.glob(f"*.{kind}")}


def _read(path: Path) -> dict[str, Any] | None:
    try:
        record: dict[str, Any] = json.loads(path.read_text())
    except (OSError, json.JSONDecodeError):  # lost, or cut short by a power failure
        return None
    return record
