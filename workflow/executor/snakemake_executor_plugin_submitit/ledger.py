"""Records on disk of what was submitted, which outlive kills, lost sessions and reboots.

    <root>/index/<job key>.json            which allocation holds a job
    <root>/<batch>/                        one call of the scheduler: its script, pickles and log
    <root>/<batch>/<n>/pack.json           the jobs of allocation n, written before it is sent
    <root>/<batch>/<n>/submitted.json      its id, written afterwards
    <root>/<batch>/<n>/started.json        written in the allocation: it runs
    <root>/<batch>/<n>/<i>.running.json    job i was started, and where
    <root>/<batch>/<n>/<i>.settled.json    job i ended, and how
    <root>/<batch>/<n>/<i>.settled-...     job i succeeded, but the disk was full
    <root>/<batch>/<n>/unfit.json          nothing can run on this host
    <root>/<batch>/<n>/<i>.withdrawn       job i is no longer wanted
    <root>/<batch>/<n>/<i>.log             what job i printed

Snakemake's own record of a job's external id is not used: it is null under --rerun-incomplete, and
a child Snakemake overwrites it.
"""

import datetime
import hashlib
import json
import re
import shlex
import shutil
import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .ownership import may_act_for
from .pack import write_json
from .schedulers import Scheduler

_DAY_S = 86400.0
_REMEMBERED_S = 7 * _DAY_S  # how long a success is kept for a run to ask about it
# Only such folders are ever removed: a user may keep other things in --submitit-folder.
_BATCH = re.compile(r"\d{8}-\d{6}-[0-9a-f]{8}")


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
    reason: str  # "ended", or "time limit"
    began: float
    ended: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """Where a job was sent."""

    allocation: Path
    number: int  # in the pack
    digest: str
    asked: str


def key_of(
    rule: str, wildcards: Mapping[str, str], outputs: Iterable[str], directory: str = ""
) -> str:
    """A job's name across runs of Snakemake: identifies what it makes, not how.

    `directory` is `Ledger.directory`.
    """
    names = [rule, sorted(wildcards.items()), sorted(outputs)]
    text = json.dumps([*names, directory] if directory else names)
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def digest_of(command: str, excluded: str = "") -> str:
    """A digest of a command, equal for commands that differ in white space only.

    `excluded`, the hosts to leave out as a word of the command, is no part of it: what runs already
    goes on when a slow host becomes known.
    """
    command = command.replace(f"={shlex.quote(excluded)}", "=")
    return hashlib.sha256(" ".join(command.split()).encode()).hexdigest()[:20]


class Ledger:
    """The files above. One executor writes them; allocations write their own.

    Several directories and users may have their records in one folder. `directory` is the one that
    this ledger is about, "" if the folder lies in it: then all records are about it, even after it
    has been moved or is mounted elsewhere. Batches of other users are left alone.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        here = Path.cwd()
        self.directory = "" if root.is_relative_to(here) else str(here)
        (root / "index").mkdir(parents=True, exist_ok=True)

    def open_batch(self) -> Path:
        """A new folder for one call of the scheduler, with a unique name."""
        now = datetime.datetime.now(datetime.UTC)
        batch = self.root / f"{now:%Y%m%d-%H%M%S}-{uuid.uuid4().hex[:8]}"
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
    ) -> None:
        """Record an allocation and its jobs, before it is submitted."""
        allocation.mkdir()
        listed = [asdict(item) for item in items]
        pack = {
            "directory": str(directory),
            "environment": dict(environment),
            "outputs_are_complete": outputs_are_complete,
            "items": listed,
        }
        write_json(allocation / "pack.json", pack)
        for number, item in enumerate(listed):
            where = {"allocation": str(allocation.relative_to(self.root)), "number": number}
            job = {"digest": item["digest"], "asked": item["asked"]}
            write_json(self._index(item["key"]), where | job)

    def write_submitted(self, allocation: Path, identity: Mapping[str, Any]) -> None:
        """Record how the scheduler names an allocation."""
        write_json(allocation / "submitted.json", dict(identity))

    def submitted(self, allocation: Path) -> dict[str, Any] | None:
        """How the scheduler names an allocation; None if that was never recorded."""
        return _read(allocation / "submitted.json")

    def has_started(self, allocation: Path) -> bool:
        """Whether the allocation has run at all."""
        return (allocation / "started.json").exists()

    def find(self, key: str) -> Entry | None:
        """Where the job of this key was last sent, if that is still recorded."""
        record = _read(self._index(key))
        if record is None:
            return None
        allocation = self.root / record["allocation"]
        if not _is_mine(allocation.parent) or not (allocation / "pack.json").exists():
            return None
        return Entry(
            allocation=allocation,
            number=record["number"],
            digest=record["digest"],
            asked=record.get("asked", ""),  # earlier versions did not record it
        )

    def forget(self, key: str) -> None:
        """Drop a settled or cancelled job, so that no run re-attaches to it."""
        self._index(key).unlink(missing_ok=True)

    def withdraw(self, allocation: Path, number: int) -> None:
        """Tell an allocation that one of its jobs is no longer wanted."""
        (allocation / f"{number}.withdrawn").touch()

    def settled(self, allocation: Path) -> dict[int, JobEnd]:
        """The jobs of an allocation that have ended, by their number in the pack.

        Lists the folder instead of checking each name, as NFS caches that a name was missing.
        """
        jobs = {}
        for number, path in _by_number(allocation, "settled.json").items():
            if (record := _read(path)) is not None:
                jobs[number] = JobEnd(**record)
        for number, path in _by_number(allocation, "settled-without-a-record").items():
            at = path.stat().st_mtime
            jobs.setdefault(number, JobEnd(code=0, reason="ended", began=at, ended=at))
        return jobs

    def began(self, allocation: Path) -> set[int]:
        """Numbers of the jobs that were started, except those ended at once from outside."""
        return set(_by_number(allocation, "running.json"))

    def unfit(self, allocation: Path) -> tuple[str, str] | None:
        """The host on which nothing can run and the reason; None if there is no such report."""
        record = _read(allocation / "unfit.json")
        return None if record is None else (record["host"], record["why"])

    def unsettled(self, allocation: Path) -> set[int]:
        """Numbers of the jobs that an allocation is running or has yet to run."""
        pack = _read(allocation / "pack.json")
        if pack is None:
            return set()
        ended = self.settled(allocation).keys() | _by_number(allocation, "withdrawn").keys()
        return set(range(len(pack["items"]))) - ended

    def has_outputs_under(self, allocation: Path, prefix: str) -> bool:
        """Whether a job of the allocation makes a file whose name begins with `prefix`."""
        pack = _read(allocation / "pack.json")
        if pack is None or self.directory not in ("", pack["directory"]):
            return False
        items = pack["items"]
        return any(name.startswith(prefix) for item in items for name in item.get("outputs", ()))

    def log_of(self, allocation: Path, number: int) -> list[Path]:
        """Log files of a job and of its allocation."""
        logs = [allocation / f"{number}.log", *sorted(allocation.parent.glob("*_log.out"))]
        return [log for log in logs if log.exists()]

    def last_words(self, allocation: Path, job: str) -> str:
        """The last line that an allocation printed; empty if it printed none."""
        try:
            text = (allocation.parent / f"{job}_0_log.out").read_text(errors="replace")
        except OSError:
            return ""
        return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")

    def tidy(self, batch: Path) -> bool:
        """Remove a batch if all its jobs succeeded and all its workers ended; whether it did."""
        try:
            done = self._is_finished(batch)
        except FileNotFoundError:  # another run of the same folder removes it too
            return False
        if done:
            self.remove(batch)
        return done

    def _is_finished(self, batch: Path) -> bool:
        allocations = [path for path in batch.iterdir() if path.is_dir()]
        # without allocations it is just being made
        if len(list(batch.glob("*_result.pkl"))) < max(1, len(allocations)):
            return False
        for allocation in allocations:
            pack, settled = _read(allocation / "pack.json"), self.settled(allocation)
            if pack is None or len(settled) < len(pack["items"]):
                return False
            if any(job.code != 0 for job in settled.values()):
                return False
            age_s = time.time() - max((job.ended for job in settled.values()), default=0.0)
            is_indexed = any(self._index(item["key"]).exists() for item in pack["items"])
            if is_indexed and age_s < _REMEMBERED_S:
                return False  # the next run of a killed Snakemake may ask for it
            for item in pack["items"]:
                self.forget(item["key"])
        return True

    def remove(self, batch: Path) -> None:
        """Remove a batch."""
        shutil.rmtree(batch, ignore_errors=True)  # a log held open on NFS stays

    def old_batches(self, age_s: float) -> dict[Path, list[dict[str, Any]]]:
        """Batches without a new file for `age_s` seconds, with the identities sent in them."""
        old_batches = {}
        for batch in self.batches():
            try:
                files = list(batch.rglob("*"))
                newest = max(path.stat().st_mtime for path in [batch, *files])
                sent = [_read(path) for path in files if path.name == "submitted.json"]
            except FileNotFoundError:
                continue
            if time.time() - newest > age_s:
                old_batches[batch] = [identity for identity in sent if identity is not None]
        return old_batches

    def batches(self) -> list[Path]:
        """Every batch of this user on disk, oldest first."""
        named = (path for path in self.root.iterdir() if _BATCH.fullmatch(path.name))
        return sorted(path for path in named if path.is_dir() and _is_mine(path))

    def _index(self, key: str) -> Path:
        return self.root / "index" / f"{key}.json"


def tidy(ledger: Ledger, scheduler: Scheduler, keep_days: float) -> None:
    """Remove batches in which every job succeeded, and old ones unless they may still run.

    Failures are kept for `keep_days` days, for people to look at.
    """
    for batch in ledger.batches():
        ledger.tidy(batch)
    old = ledger.old_batches(keep_days * _DAY_S)
    sent = [identity for identities in old.values() for identity in identities]
    states = scheduler.states(sent) if sent else {}
    if states is None:
        return
    alive = {job for job, state in states.items() if state.live}
    for batch, identities in old.items():
        if not alive & {str(identity["job"]) for identity in identities}:
            ledger.remove(batch)


def _is_mine(batch: Path) -> bool:
    try:
        return may_act_for(batch.stat().st_uid)
    except FileNotFoundError:  # another run of the same folder has removed it
        return False


def _by_number(allocation: Path, kind: str) -> dict[int, Path]:
    """The files of one kind, by the number of their job."""
    return {int(path.name.split(".")[0]): path for path in allocation.glob(f"*.{kind}")}


def _read(path: Path) -> dict[str, Any] | None:
    try:
        record: dict[str, Any] = json.loads(path.read_text())
    except (FileNotFoundError, json.JSONDecodeError):  # lost, or cut short by a power failure
        return None
    return record
