"""Records on disk of what was submitted, which outlive kills, lost sessions and reboots.

    <root>/<batch>/                        one call of the scheduler: its script, pickles and log
    <root>/<batch>/<n>/pack.json           the jobs of allocation n, written before it is sent
    <root>/<batch>/<n>/started.json        written in the allocation: it runs
    <root>/<batch>/<n>/<i>.running.json    job i was started, and where
    <root>/<batch>/<n>/<i>.finished.json   job i ended, and how
    <root>/<batch>/<n>/<i>.finished-...    job i succeeded, but the disk was full
    <root>/<batch>/<n>/<i>.returned        job i was left for later; a byte for each time
    <root>/<batch>/<n>/unusable.json       nothing can run on this host
    <root>/<batch>/<n>/<i>.withdrawn       job i is no longer wanted, or Snakemake knows its end
    <root>/<batch>/<n>/<i>.log             what job i printed

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
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .ownership import RECORDS, may_act_for
from .pack import write_json
from .schedulers import Listed

_DAY_S = 86400.0
_BATCH = re.compile(r"\d{8}-\d{6}-[0-9a-f]{8}")  # only such folders are ever removed


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """One job in a pack, as written to pack.json.

    A job with the same `digest` is unchanged, one with the same `asked` needs the same resources.
    """

    name: str
    key: str
    command: str
    digest: str
    limit_s: float
    asked: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    outputs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEnd:
    """How a job in a pack ended: its exit code, and whether the executor ended it."""

    code: int
    reason: str  # "ended", "time limit", or "memory limit"
    began: float
    ended: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The place to which an earlier run has sent a job."""

    allocation: Path
    number: int  # in the pack
    digest: str
    asked: str


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

    def open_batch(self) -> Path:
        """A new folder for one call of the scheduler, with a unique name."""
        now = datetime.datetime.now(datetime.UTC)
        batch = self.root / f"{now:%Y%m%d-%H%M%S}-{uuid.uuid4().hex[:8]}"
        self.root.mkdir(parents=True, exist_ok=True)
        # its pickles are code that the scheduler runs as this user: nobody else may write them
        batch.mkdir(mode=0o700)
        return batch

    def write_pack(
        self,
        allocation: Path,
        items: Iterable[JobRecord],
        *,
        directory: Path,
        environment: Mapping[str, str],
        outputs_are_complete: bool = False,
        restarts: int | None = None,
    ) -> None:
        """Record an allocation and its jobs, before it is submitted."""
        allocation.mkdir()
        pack = {
            "directory": str(directory),
            "environment": dict(environment),
            "outputs_are_complete": outputs_are_complete,
            "restarts": restarts,
            "items": [asdict(item) for item in items],
        }
        write_json(allocation / "pack.json", pack)

    def items(self, allocation: Path) -> list[dict[str, Any]] | None:
        """The jobs of an allocation as they were recorded; None without a record of this user."""
        pack = _read(allocation / "pack.json") if _is_mine(allocation.parent) else None
        return None if pack is None else list(pack["items"])

    def places(self) -> dict[str, Place]:
        """The last place of each job, by its key, unless it was withdrawn there."""
        places: dict[str, Place] = {}
        for allocation in (path for batch in self.batches() for path in sorted(batch.iterdir())):
            withdrawn = self.withdrawn(allocation)
            for number, item in enumerate(self.items(allocation) or ()):
                places.pop(item["key"], None)
                if number not in withdrawn:
                    places[item["key"]] = Place(
                        allocation=allocation,
                        number=number,
                        digest=item["digest"],
                        asked=item["asked"],
                    )
        return places

    def folder_of(self, job: Listed) -> Path:
        """The folder of the allocation that a job of the scheduler is."""
        return self.root / job.batch / str(job.number)

    def orphans(self, listed: Iterable[Listed], unwanted: Collection[str]) -> list[Listed]:
        """Live jobs of this directory that have nothing to run.

        Their batch is unknown, `unwanted` or withdrawn, or all of it has finished and the job waits
        to be started again.
        """
        found = []
        for job in listed:
            if not job.state.live or not _BATCH.fullmatch(job.batch):
                continue
            allocation = self.folder_of(job)
            if self.items(allocation) is None:
                is_known = allocation.parent.exists()
                idle = job.directory == str(Path.cwd()) and not is_known
            else:
                stopped = self.withdrawn(allocation) - self.finished(allocation).keys()
                idle = not self.unfinished(allocation) and (job.state.waits or bool(stopped))
            if idle or job.batch in unwanted:
                found.append(job)
        return found

    def restarts(self, allocation: Path) -> int | None:
        """How often an allocation was started again; None if it has not run at all."""
        record = _read(allocation / "started.json")
        return None if record is None else int(record.get("restarts", 0))

    def returned(self, allocation: Path) -> set[int]:
        """Numbers of the jobs that were left for later."""
        return set(_by_number(allocation, "returned"))

    def withdraw(self, allocation: Path, numbers: Iterable[int]) -> None:
        """Note that jobs are no longer wanted from there, or that Snakemake has recorded their end.

        An allocation ends a job that runs, and does not start one that waits.
        """
        for number in numbers:
            # a full disk: who withdraws what runs has it cancelled too
            with contextlib.suppress(OSError):
                (allocation / f"{number}.withdrawn").touch()

    def withdrawn(self, allocation: Path) -> set[int]:
        """Numbers of the jobs of an allocation that were withdrawn."""
        return set(_by_number(allocation, "withdrawn"))

    def finished(self, allocation: Path) -> dict[int, JobEnd]:
        """The jobs of an allocation that have ended, by their number in the pack.

        Lists the folder instead of checking each name, as NFS caches that a name was missing.
        """
        jobs = {}
        for number, path in _by_number(allocation, "finished.json").items():
            if (record := _read(path)) is not None:
                jobs[number] = JobEnd(**record)
        for number, path in _by_number(allocation, "finished-without-a-record").items():
            at = path.stat().st_mtime
            jobs.setdefault(number, JobEnd(code=0, reason="ended", began=at, ended=at))
        return jobs

    def began(self, allocation: Path) -> set[int]:
        """Numbers of the jobs that were started, except those ended at once from outside."""
        return set(_by_number(allocation, "running.json"))

    def unusable(self, allocation: Path) -> tuple[str, str] | None:
        """The host on which nothing can run and the reason; None if there is no such report."""
        record = _read(allocation / "unusable.json")
        return None if record is None else (record["host"], record["why"])

    def unfinished(self, allocation: Path) -> set[int]:
        """Numbers of the jobs that an allocation is running or has yet to run."""
        ended = self.finished(allocation).keys() | self.withdrawn(allocation)
        return set(range(len(self.items(allocation) or ()))) - ended

    def makes(self, job: Listed, prefix: str) -> bool:
        """Whether a job of the scheduler makes a file whose name begins with `prefix`."""
        items = self.items(self.folder_of(job)) or ()
        return any(name.startswith(prefix) for item in items for name in item["outputs"])

    def log_of(self, allocation: Path, number: int) -> list[Path]:
        """Log files of a job and of its allocation."""
        logs = [allocation / f"{number}.log", *sorted(allocation.parent.glob("*_log.out"))]
        return [log for log in logs if log.exists()]

    def last_words(self, allocation: Path, job: str) -> str | None:
        """The last line that an allocation printed, "" if it printed none; None without a log."""
        try:
            text = (allocation.parent / f"{job}_0_log.out").read_text(errors="replace")
        except OSError:
            return None
        return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")

    def remove(self, batch: Path) -> None:
        """Remove a batch."""
        shutil.rmtree(batch, ignore_errors=True)  # a log held open on NFS stays

    def batches(self) -> list[Path]:
        """Every batch of this user on disk, oldest first."""
        try:
            named = [path for path in self.root.iterdir() if _BATCH.fullmatch(path.name)]
        except FileNotFoundError:
            return []
        return sorted(path for path in named if path.is_dir() and _is_mine(path))

    def tidy(self, listed: Iterable[Listed], keep_days: float) -> None:
        """Remove batches of which nothing is wanted, and those older than `keep_days` days.

        Failures are kept so long, for people to look at. Records of jobs that may still run are
        always kept.
        """
        alive = {job.batch for job in listed if job.state.live}
        for batch in self.batches():
            with contextlib.suppress(FileNotFoundError):  # another run removes it too
                newest = max(path.stat().st_mtime for path in [batch, *batch.rglob("*")])
                is_old = time.time() - newest > keep_days * _DAY_S
                if batch.name not in alive and (is_old or self._is_done(batch)):
                    self.remove(batch)

    def _is_done(self, batch: Path) -> bool:
        """Whether Snakemake has recorded the end of all its jobs, and none has failed."""
        allocations = [path for path in batch.iterdir() if path.is_dir()]
        for allocation in allocations:
            items, ends = self.items(allocation), self.finished(allocation).values()
            failed = any(end.code != 0 for end in ends)
            if items is None or failed or len(self.withdrawn(allocation)) < len(items):
                return False
        return bool(allocations)


def _is_mine(batch: Path) -> bool:
    try:
        return may_act_for(batch.stat().st_uid)
    except OSError:  # another run of the same folder has removed it
        return False


def _by_number(allocation: Path, kind: str) -> dict[int, Path]:
    """The files of one kind, by the number of their job."""
    return {int(path.name.split(".")[0]): path for path in allocation.glob(f"*.{kind}")}


def _read(path: Path) -> dict[str, Any] | None:
    try:
        record: dict[str, Any] = json.loads(path.read_text())
    except (OSError, json.JSONDecodeError):  # lost, or cut short by a power failure
        return None
    return record
