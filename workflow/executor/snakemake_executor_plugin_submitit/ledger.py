"""What was submitted, on disk: the executor's memory across kills, lost sessions and reboots.

    <root>/index/<job key>.json            which allocation holds a job
    <root>/<batch>/                        one call of the scheduler: its script, pickles and log
    <root>/<batch>/<n>/pack.json           the jobs of allocation n, written before it is sent
    <root>/<batch>/<n>/submitted.json      its id, written after
    <root>/<batch>/<n>/started.json        written in the allocation: it runs
    <root>/<batch>/<n>/<i>.running.json    job i was started, where
    <root>/<batch>/<n>/<i>.settled.json    job i ended, how
    <root>/<batch>/<n>/<i>.settled-...     job i ended well, on a disk that was full
    <root>/<batch>/<n>/unfit.json          on this host nothing can run
    <root>/<batch>/<n>/<i>.withdrawn       job i is no longer wanted
    <root>/<batch>/<n>/<i>.log             what job i printed

Snakemake's own record of a job's external id is not used: it is null under --rerun-incomplete, and
a child Snakemake overwrites it.
"""

import datetime
import hashlib
import json
import shutil
import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .pack import write_json

# a job that succeeded and that no run has asked about for so long is not kept for one
_REMEMBERED_S = 7 * 86400


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One job in a pack. `digest` tells whether a job wanted later is the one that was sent."""

    name: str
    key: str
    command: str
    digest: str
    limit_s: float
    environment: Mapping[str, str] = field(default_factory=dict)
    outputs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
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


def key_of(rule: str, wildcards: Mapping[str, str], outputs: Iterable[str]) -> str:
    """Names a job across runs of Snakemake: what it makes, not how."""
    text = json.dumps([rule, sorted(wildcards.items()), sorted(outputs)])
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def digest_of(command: str) -> str:
    """Equal for commands that differ in blanks only."""
    return hashlib.sha256(" ".join(command.split()).encode()).hexdigest()[:20]


class Ledger:
    """The files above. One executor writes them; allocations write their own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "index").mkdir(parents=True, exist_ok=True)

    def open_batch(self) -> Path:
        """A new folder for one call of the scheduler, named so that no other call ever was."""
        now = datetime.datetime.now(datetime.UTC)
        batch = self.root / f"{now:%Y%m%d-%H%M%S}-{uuid.uuid4().hex[:8]}"
        # its pickles are code that the scheduler runs as us: nobody else may write or replace one
        batch.mkdir(mode=0o700)
        return batch

    def write_pack(
        self,
        allocation: Path,
        items: Iterable[Item],
        *,
        directory: Path,
        environment: Mapping[str, str],
    ) -> None:
        """Record an allocation and its jobs, before it is submitted."""
        allocation.mkdir()
        listed = [asdict(item) for item in items]
        pack = {"directory": str(directory), "environment": dict(environment), "items": listed}
        write_json(allocation / "pack.json", pack)
        for number, item in enumerate(listed):
            where = {"allocation": str(allocation.relative_to(self.root)), "number": number}
            write_json(self._index(item["key"]), {**where, "digest": item["digest"]})

    def write_submitted(self, allocation: Path, identity: Mapping[str, Any]) -> None:
        """Record what the scheduler calls an allocation."""
        write_json(allocation / "submitted.json", dict(identity))

    def submitted(self, allocation: Path) -> dict[str, Any] | None:
        """What the scheduler calls an allocation; None if it never said or we died before."""
        return _read(allocation / "submitted.json")

    def started(self, allocation: Path) -> bool:
        """Whether the allocation has run at all."""
        return (allocation / "started.json").exists()

    def find(self, key: str) -> Entry | None:
        """Where the job of this key was sent last, if its record is still there."""
        record = _read(self._index(key))
        if record is None:
            return None
        allocation = self.root / record["allocation"]
        if not (allocation / "pack.json").exists():
            return None
        return Entry(allocation=allocation, number=record["number"], digest=record["digest"])

    def forget(self, key: str) -> None:
        """A job is settled or cancelled: it is not to be re-attached to."""
        self._index(key).unlink(missing_ok=True)

    def withdraw(self, allocation: Path, number: int) -> None:
        """Tell an allocation that one of its jobs is no longer wanted."""
        (allocation / f"{number}.withdrawn").touch()

    def settled(self, allocation: Path) -> dict[int, Settled]:
        """The jobs of an allocation that have ended, by their number in the pack.

        The folder is listed instead of asked for each name: on NFS a name that was missing a moment
        ago is remembered as missing.
        """
        jobs = {}
        for number, path in _by_number(allocation, "settled.json").items():
            if (record := _read(path)) is not None:
                jobs[number] = Settled(**record)
        for number, path in _by_number(allocation, "settled-without-a-record").items():
            at = path.stat().st_mtime
            jobs.setdefault(number, Settled(code=0, reason="ended", began=at, ended=at))
        return jobs

    def began(self, allocation: Path) -> set[int]:
        """Numbers of the jobs that were started, and not ended from outside at once."""
        return set(_by_number(allocation, "running.json"))

    def unfit(self, allocation: Path) -> tuple[str, str] | None:
        """The host that can run nothing, and who says so; None if nobody does."""
        record = _read(allocation / "unfit.json")
        return None if record is None else (record["host"], record["why"])

    def unsettled(self, allocation: Path) -> set[int]:
        """Numbers of the jobs that an allocation is still to run or running."""
        pack = _read(allocation / "pack.json")
        if pack is None:
            return set()
        ended = self.settled(allocation).keys() | _by_number(allocation, "withdrawn").keys()
        return set(range(len(pack["items"]))) - ended

    def makes(self, allocation: Path, prefix: str) -> bool:
        """Whether an allocation was sent for a file whose name begins so."""
        items = (_read(allocation / "pack.json") or {"items": []})["items"]
        return any(name.startswith(prefix) for item in items for name in item.get("outputs", ()))

    def log_of(self, allocation: Path, number: int) -> list[Path]:
        """What a job printed, and what its allocation did."""
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
        """Remove a batch in which every job succeeded and whose worker has said goodbye.

        Another run of the same folder may be doing the same.
        """
        try:
            done = self._is_done_with(batch)
        except FileNotFoundError:
            return False
        if done:
            self.remove(batch)
        return done

    def _is_done_with(self, batch: Path) -> bool:
        allocations = [path for path in batch.iterdir() if path.is_dir()]
        if len(list(batch.glob("*_result.pkl"))) < len(allocations):
            return False
        for allocation in allocations:
            pack, settled = _read(allocation / "pack.json"), self.settled(allocation)
            if pack is None or len(settled) < len(pack["items"]):
                return False
            if any(job.code != 0 for job in settled.values()):
                return False
            age_s = time.time() - max((job.ended for job in settled.values()), default=0.0)
            unseen = any(self._index(item["key"]).exists() for item in pack["items"])
            if unseen and age_s < _REMEMBERED_S:
                return False  # a run that was killed may still ask for it
            for item in pack["items"]:
                self.forget(item["key"])
        return True

    def remove(self, batch: Path) -> None:
        """Throw a batch away."""
        shutil.rmtree(batch, ignore_errors=True)  # a log still held open on NFS stays; so be it

    def old(self, age_s: float) -> dict[Path, list[dict[str, Any]]]:
        """Batches in which nothing was written for so long, and the jobs sent in them."""
        old = {}
        for batch in self.batches():
            try:
                files = list(batch.rglob("*"))
                newest = max(path.stat().st_mtime for path in [batch, *files])
                sent = [_read(path) for path in files if path.name == "submitted.json"]
            except FileNotFoundError:
                continue
            if time.time() - newest > age_s:
                old[batch] = [identity for identity in sent if identity is not None]
        return old

    def batches(self) -> list[Path]:
        """Every batch on disk, oldest first."""
        return sorted(p for p in self.root.iterdir() if p.is_dir() and p.name != "index")

    def _index(self, key: str) -> Path:
        return self.root / "index" / f"{key}.json"


def _by_number(allocation: Path, kind: str) -> dict[int, Path]:
    """The files of one kind, by the number of their job."""
    return {int(path.name.split(".")[0]): path for path in allocation.glob(f"*.{kind}")}


def _read(path: Path) -> dict[str, Any] | None:
    try:
        record: dict[str, Any] = json.loads(path.read_text())
    except (FileNotFoundError, json.JSONDecodeError):  # lost, or cut short by a power failure
        return None
    return record
