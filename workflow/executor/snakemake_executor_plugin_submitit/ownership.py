"""A lock on the files that a Snakemake makes, which ends with its owner.

Claims lie in the directory in which the files are made, so that all who work there see each other.
Snakemake's own lock records no owner: after a kill it must be removed by hand (`--unlock`), and the
same command could not just continue. Profiles for this executor therefore set `nolock: true`.
"""

import contextlib
import json
import os
import pwd
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from snakemake_interface_common.exceptions import WorkflowError

from .pack import write_json

# Where records are kept: a folder that login and compute nodes share, as they share the directory.
RECORDS = Path(".snakemake/submitit")
CLAIMS = RECORDS / "index" / "owners"
BEAT_S = 5.0  # the heartbeat of an owner
SILENCE_S = 30.0  # after which an owner that cannot be looked at is dead


class OwnedElsewhere(WorkflowError):
    """Somebody else makes some of the same files; the message is a whole sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Who makes which files."""

    host: str
    pid: int
    began: str  # as the kernel counts it, so a clock that is set does not change it
    uid: int
    outputs: list[str]

    def __str__(self) -> str:
        whose = "" if self.uid == os.getuid() else f" of {user_name(self.uid)}"
        return f"snakemake (pid {self.pid}{whose} on {self.host})"

    @property
    def is_here(self) -> bool:
        """Whether this process can look at it; hosts may hide processes of other users."""
        return self.host == socket.gethostname() and may_act_for(self.uid)

    def runs(self) -> bool:
        """Whether the process on this host runs; another one may have got its pid."""
        return began(self.pid) == self.began


class Ownership:
    """This process's claim to make certain files, released at the end or with the process."""

    def __init__(self, folder: Path = CLAIMS) -> None:
        folder = folder.absolute()
        folder.mkdir(parents=True, exist_ok=True)
        self._file = folder / f"{uuid.uuid4().hex}.json"
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
        least one sees the other. Jobs of a dead owner are taken up, if it is of this user.
        Otherwise they must have ended: `left_by` names the jobs of a user in this directory that
        live, None if nobody knows. `say` announces a wait for the heartbeat of another owner.

        Raises:
            OwnedElsewhere: another live process has claimed one of the files, or a dead one may
                have left jobs that make them.
        """
        wanted = sorted(outputs)
        if not wanted:  # nothing to do; Snakemake would not call `release` either
            return
        mine = Claim(
            host=socket.gethostname(),
            pid=os.getpid(),
            began=began(os.getpid()) or "",
            uid=os.getuid(),
            outputs=wanted,
        )
        write_json(self._file, asdict(mine))
        self._file.chmod(0o644)  # whatever this user's umask is
        self._claimed = True
        threading.Thread(target=self._beat, name="heartbeat", daemon=True).start()
        for path, other in claims_in(self._file.parent):
            shared = set(other.outputs) & set(wanted)
            if path == self._file or not shared:
                continue
            who = None
            if lives(path, other, say):
                who = f"another {other} is"
            elif not may_act_for(other.uid) and (jobs := left_by(other.uid)) != []:
                which = f"job {', '.join(jobs)}" if jobs else "what the scheduler cannot list now"
                who = f"{which}, sent by {user_name(other.uid)}, may be"
            if who is not None:
                self.release()
                raise OwnedElsewhere(
                    f"{who} making {min(shared)} in this folder: wait for it or "
                    f"{how_to_stop(other)}, then run this again"
                )
            with contextlib.suppress(PermissionError):  # of another user, in a sticky folder
                path.unlink(missing_ok=True)

    def _beat(self) -> None:
        """Show others that this one lives."""
        while not self._released.wait(BEAT_S):
            with contextlib.suppress(OSError):  # released, or the file system is briefly away
                os.utime(self._file)

    @property
    def is_lost(self) -> bool:
        """Whether another process took this one for dead, after a long silence, and took over."""
        return self._claimed and not self._released.is_set() and not self._file.exists()

    def release(self, *, jobs_run_on: bool = False) -> None:
        """Give the claim up, or leave it as that of a dead owner, whose jobs run on."""
        self._released.set()
        if not jobs_run_on:
            self._file.unlink(missing_ok=True)


def claims_in(folder: Path) -> Iterator[tuple[Path, Claim]]:
    """Every claim, but for those released just now, emptied by a power failure, or of old."""
    for path in folder.glob("*.json"):
        with contextlib.suppress(FileNotFoundError, ValueError, TypeError):
            yield path, Claim(**json.loads(path.read_text()))


def lives(path: Path, claim: Claim, say: Callable[[str], None]) -> bool:
    """Whether the owner of a claim runs; one that cannot be looked at must show a heartbeat."""
    if claim.is_here:
        return claim.runs()
    say(f"looking for {SILENCE_S:g} s whether {claim} still lives")
    heard, end = _heard(path), time.monotonic() + SILENCE_S
    while (now := _heard(path)) == heard and time.monotonic() < end:
        time.sleep(0.2)
    return now not in (heard, None)


def may_act_for(uid: int) -> bool:
    """Whether this process may signal and cancel what this user runs."""
    return os.getuid() in (0, uid)


def user_name(uid: int) -> str:
    """The name of a user, the number of one whom this host does not know."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def how_to_stop(claim: Claim) -> str:
    """The advice to a user about another Snakemake."""
    return "stop it" if may_act_for(claim.uid) else f"have {user_name(claim.uid)} stop it"


def began(pid: int) -> str | None:
    """When a process of this host began, in ticks of the kernel; None if it has ended."""
    try:
        facts = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if facts[0] == "Z" else facts[19]


def _heard(path: Path) -> float | None:
    """When an owner was last heard of, by the file server's clock; None if it has released."""
    try:
        with path.open() as file:  # opening it makes a network file system ask its server
            return os.fstat(file.fileno()).st_mtime
    except FileNotFoundError:
        return None
