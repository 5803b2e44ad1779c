"""A lock on the files that a Snakemake makes, which ends with its owner.

Claims lie in the directory in which the files are made, so that all who work there see each other,
whatever folder each of them keeps records in.

Snakemake's own lock records no owner: after a kill it must be removed by hand (`--unlock`), and the
same command could not just continue. Profiles for this executor therefore set `nolock: true`.
"""

import contextlib
import json
import os
import pwd
import socket
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import psutil

from .pack import write_json

# Where records are kept, unless a user names another folder.
RECORDS = Path(".snakemake/submitit")
CLAIMS = RECORDS / "index" / "owners"

# The heartbeat of an owner.
BEAT_S = 5.0
# An owner on another host is dead if it was silent for so long.
SILENCE_S = 30.0


class OwnedElsewhere(RuntimeError):
    """Somebody else makes some of the same files; the message is a whole sentence."""


class Ownership:
    """This process's claim to make certain files, released at the end or with the process.

    `records` is the folder of its ledger, in which `stop` finds what it has sent.
    """

    def __init__(self, folder: Path, records: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = folder / f"{uuid.uuid4().hex}.json"
        self._records = str(records)
        self._claimed = False
        self._released = threading.Event()

    def claim(
        self,
        outputs: Iterable[str],
        say: Callable[[str], None] = lambda _: None,
        left_by: Callable[[int], list[str] | None] = lambda _: [],
    ) -> None:
        """Claim these files.

        The claim is written before others are looked at: of two processes that start at once, at
        least one sees the other. An owner on another host is watched until it shows a heartbeat or
        has been silent for long enough; `say` announces the wait. What a dead owner has sent is
        taken up from its records if they are this process's too. Otherwise it must have ended:
        `left_by` names the jobs of a user in this directory that live, None if nobody knows.

        Raises:
            OwnedElsewhere: another live process has claimed one of the files, or a dead one may
                have left jobs that make them.
        """
        wanted = sorted(outputs)
        if not wanted:  # nothing to do; Snakemake would not call `release` either
            return
        mine = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            **birth_of(os.getpid()),
            "uid": os.getuid(),
            "records": self._records,
            "outputs": wanted,
        }
        write_json(self._file, mine)
        self._file.chmod(0o644)  # whatever this user's umask is
        self._claimed = True
        threading.Thread(target=self._beat, name="heartbeat", daemon=True).start()
        for path in self._file.parent.glob("*.json"):
            if path == self._file:
                continue
            try:
                other = json.loads(path.read_text())
                shared = set(other["outputs"]) & set(wanted)
                lives = shared and self._owner_lives(path, other, say)
            except (FileNotFoundError, json.JSONDecodeError):
                continue  # released just now, or emptied by a power failure
            if not shared:
                continue
            who = f"another {name_of(other)} is" if lives else self._left_by(other, left_by)
            if who is not None:
                self.release()
                user = owner_uid(other)
                stop = "stop it" if may_act_for(user) else f"have {user_name(user)} stop it"
                raise OwnedElsewhere(
                    f"{who} making {min(shared)} in this folder: wait for it or {stop}, then run "
                    "this again"
                )
            with contextlib.suppress(PermissionError):  # of another user, in a sticky folder
                path.unlink(missing_ok=True)

    def _left_by(
        self, other: Mapping[str, Any], left_by: Callable[[int], list[str] | None]
    ) -> str | None:
        """What may still make the files of a dead owner; None if nothing does."""
        uid = owner_uid(other)
        records = other.get("records", self._records)
        if may_act_for(uid) and records == self._records:
            return None
        jobs = left_by(uid)
        if jobs == []:
            return None
        which = "what the scheduler cannot list now" if jobs is None else f"job {', '.join(jobs)}"
        how = f"with --submitit-folder {records}" if may_act_for(uid) else f"by {user_name(uid)}"
        return f"{which}, sent {how}, may be"

    def _owner_lives(self, path: Path, other: dict[str, Any], say: Callable[[str], None]) -> bool:
        if can_be_seen(other):
            return is_running(other)
        heard = path.stat().st_mtime
        self.heartbeat()  # to read the file server's clock, as in the other's heartbeats
        silent_s = self._file.stat().st_mtime - heard
        if silent_s >= SILENCE_S:
            return False
        say(f"looking for {SILENCE_S:g} s whether another {name_of(other)} still lives")
        end = time.monotonic() + SILENCE_S
        while time.monotonic() < end:
            path.read_text()  # opening it makes a network file system ask its server
            if path.stat().st_mtime != heard:
                return True
            time.sleep(0.2)
        return False

    def _beat(self) -> None:
        while not self._released.wait(BEAT_S):
            with contextlib.suppress(OSError):  # a file system that is briefly unavailable
                self.heartbeat()

    @property
    def is_lost(self) -> bool:
        """Whether another process took this one for dead, after a long silence, and took over."""
        return self._claimed and not self._released.is_set() and not self._file.exists()

    def heartbeat(self) -> None:
        """Show owners on other hosts that this one lives."""
        if self._file.exists():
            os.utime(self._file)  # by the clock of the file server

    def release(self) -> None:
        """Give the claim up."""
        self._released.set()
        self._file.unlink(missing_ok=True)

    def abandon(self) -> None:
        """Leave the claim as that of a dead owner, whose jobs run on."""
        self._released.set()


def claims_of(folder: Path, prefix: str) -> list[tuple[Path, dict[str, Any], bool]]:
    """Claims of files whose names begin with `prefix`, and whether their owners live."""
    claims = []
    now = _server_time(folder)
    for path in folder.glob("*.json"):
        try:
            owner = json.loads(path.read_text())
            heard_s = now - path.stat().st_mtime
        except (FileNotFoundError, json.JSONDecodeError):  # released just now
            continue
        lives = is_running(owner) if can_be_seen(owner) else heard_s < SILENCE_S
        if any(name.startswith(prefix) for name in owner["outputs"]):
            claims.append((path, owner, lives))
    return claims


def all_records() -> set[Path]:
    """The folders of records of all who have claimed files in this directory."""
    folders = {RECORDS.absolute()}
    for path in CLAIMS.glob("*.json"):
        with contextlib.suppress(OSError, json.JSONDecodeError):  # released just now
            folders.add(Path(json.loads(path.read_text()).get("records", RECORDS)).absolute())
    return folders


def may_act_for(uid: int) -> bool:
    """Whether this process may signal and cancel what this user runs."""
    return os.getuid() in (0, uid)


def user_name(uid: int) -> str:
    """The name of a user, the number of one whom this host does not know."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def owner_uid(owner: Mapping[str, Any]) -> int:
    """The user of an owner; this one where an earlier version has not recorded it."""
    return int(owner.get("uid", os.getuid()))


def name_of(owner: Mapping[str, Any]) -> str:
    """An owner as a sentence names it."""
    uid = owner_uid(owner)
    whose = "" if uid == os.getuid() else f" of {user_name(uid)}"
    return f"snakemake (pid {owner['pid']}{whose} on {owner['host']})"


def can_be_seen(owner: Mapping[str, Any]) -> bool:
    """Whether this process can look at the owner's; hosts may hide those of other users."""
    return owner["host"] == socket.gethostname() and may_act_for(owner_uid(owner))


def _server_time(folder: Path) -> float:
    """The time by the clock of the file server, as of heartbeats; else by this host's."""
    try:
        with tempfile.NamedTemporaryFile(dir=folder) as file:
            return os.fstat(file.fileno()).st_mtime
    except OSError:  # no such folder, or no room for a file
        return time.time()


def is_running(owner: Mapping[str, Any]) -> bool:
    """Whether this owner on this host still runs."""
    return recorded_process(owner["pid"], owner) is not None


def birth_of(pid: int) -> dict[str, float]:
    """When a process began, for records: by the clock, and since the system's start."""
    created = psutil.Process(pid).create_time()
    return {"created": created, "since_boot_s": created - psutil.boot_time()}


def recorded_process(pid: int, record: Mapping[str, Any]) -> psutil.Process | None:
    """The process of this pid if it is the one recorded, as pids are reused; None if it has ended.

    A clock that is set moves when processes seem to have been created, not when since the system's
    start. Records of an earlier version lack the latter.
    """
    try:
        process, born = psutil.Process(pid), birth_of(pid)
        which, within_s = ("since_boot_s", 0.05) if "since_boot_s" in record else ("created", 1.0)
        same = abs(born[which] - record[which]) < within_s
        return process if same and process.status() != psutil.STATUS_ZOMBIE else None
    except psutil.NoSuchProcess:
        return None
