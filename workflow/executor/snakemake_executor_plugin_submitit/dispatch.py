"""Wishes become allocations, and allocations settle wishes; nothing here knows of Snakemake."""

import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from .allocations import Allocation, Allocations, Wish
from .ledger import Ledger, Settled
from .packing import packs_of
from .reattach import Reattachment
from .request import Request
from .schedulers import Scheduler, State
from .submission import Refused, Sender

# an allocation that no command of Slurm knows any more is lost after this
LOST_S = 60.0
# below Slurm's default MaxArraySize of 1001
LARGEST_ARRAY = 1000


class Listener(Protocol):
    """Who wants to know how wishes fare."""

    def prepare(self, wish: Wish) -> None:
        """Called before a wish that was taken is sent anew, in the thread that called `take`."""

    def sent(self, wish: Wish, job: str) -> None:
        """The wish is in the hands of the scheduler, as part of this job."""

    def succeeded(self, wish: Wish) -> None:
        """Its command ended with 0."""

    def failed(self, wish: Wish, why: str, logs: Sequence[Path]) -> None:
        """It did not; `why` is a sentence."""

    def say(self, sentence: str) -> None:
        """Something a user should read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How wishes are packed and how many allocations may be in flight; see the settings."""

    pack: int = 1
    pack_minutes: int | None = None
    array: bool = False
    max_allocations: int | None = None
    gpus: int | None = None  # of this machine, to be shared out; None: the scheduler's business
    latency_s: float = 5.0  # until a file written elsewhere must be visible


class Dispatcher:
    """Thread-safe: wishes come from Snakemake's thread and are settled in the polling thread."""

    def __init__(
        self, *, ledger: Ledger, scheduler: Scheduler, sender: Sender, limits: Limits,
        listener: Listener, directory: Path,
    ) -> None:  # fmt: skip
        self._ledger = ledger
        self._scheduler = scheduler
        self._sender = sender
        self._limits = limits
        self._listener = listener
        self._directory = directory
        self._mutex = threading.RLock()
        self._waiting: list[Wish] = []
        self._open = Allocations(most=limits.max_allocations, gpus=limits.gpus or 0)
        self._refusals: dict[str, str] = {}  # by request: asking again gives the same answer
        self._told: set[str] = set()
        self._cancelled = False
        self._answers = True
        self.allocations_sent = 0

    # -- wishes come ------------------------------------------------------------------------------

    def take(self, wishes: Sequence[Wish]) -> None:
        """Take up what an earlier run has sent, and send the rest off in packs."""
        with self._mutex:
            earlier = Reattachment(self._ledger, self._scheduler, wishes)
            taken_up: Counter[str] = Counter()
            for wish in wishes:
                found = earlier.found(wish)
                if found is None:
                    self._listener.prepare(wish)
                    self._waiting.append(wish)
                    continue
                folder, number = found
                allocation = self._open.get(folder)
                if allocation is None:
                    allocation = Allocation(
                        folder=folder, identity=self._ledger.submitted(folder), reattached=True
                    )
                    self._open.add(allocation)
                self._watch(allocation, number, wish)
                taken_up[allocation.job] += 1
            for job, count in taken_up.items():
                self._listener.say(f"job {job} of an earlier run is taken up, {count} in it")
            self._send_waiting()

    def _watch(self, allocation: Allocation, number: int, wish: Wish) -> None:
        allocation.waited_for[number] = wish
        self._listener.sent(wish, allocation.job)

    # -- allocations go ---------------------------------------------------------------------------

    def _send_waiting(self) -> None:
        """Send what waits as far as there is room; the rest goes on waiting."""
        waiting, self._waiting = self._waiting, []
        packs = packs_of(
            ((wish.request, wish) for wish in waiting),
            most=self._limits.pack,
            most_minutes=self._limits.pack_minutes,
        )
        while packs:
            request, first = packs.pop(0)
            gpus_each = request.gpus if self._limits.gpus is not None else 0
            room = self._open.room(gpus_each)
            if room == 0 or self._cancelled:
                self._waiting += first
                continue
            together = [first]
            most = LARGEST_ARRAY if room is None else min(room, LARGEST_ARRAY)
            while self._limits.array and len(together) < most and _next_fits(packs, request, first):
                together.append(packs.pop(0)[1])
            self._send(request, together, gpus_each)

    def _send(self, request: Request, packs: list[list[Wish]], gpus_each: int) -> None:
        said = self._refusals.get(request.key)
        if said is not None:
            self._refuse(packs, said)
            return
        allocations: list[Allocation] = []
        count, name = sum(map(len, packs)), packs[0][0].item.name
        try:
            batch = self._ledger.open_batch()
            for number, wishes in enumerate(packs):
                # on disk before sbatch is called: if we die in between, the next run finds the job
                folder = batch / str(number)
                self._ledger.write_pack(
                    folder,
                    [wish.item for wish in wishes],
                    directory=self._directory,
                    environment={"SRUN_ARGS": request.srun_args} if request.srun_args else {},
                )
                allocations.append(Allocation(folder=folder, identity=None))
                self._open.add(allocations[-1], gpus=gpus_each)
            identities = self._sender.send(
                batch,
                [allocation.folder for allocation in allocations],
                request,
                name=name if count == 1 else f"{name} +{count - 1}",
                comment=f"snakemake in {self._directory.name}, {batch.name}",
                minutes=request.minutes(len(packs[0])),
                gpus=allocations[0].gpus,
            )
        except (Refused, OSError) as problem:  # OSError: a file system that is full or away
            for allocation in allocations:
                self._open.close(allocation)
            if isinstance(problem, OSError) or problem.unsure:
                self._renounce(allocations)
            if isinstance(problem, OSError) or problem.later:
                self._wait_for(str(problem), packs)
            else:
                self._refusals[request.key] = str(problem)
                self._refuse(packs, str(problem))
            return
        self.allocations_sent += len(allocations)
        for allocation, identity, wishes in zip(allocations, identities, packs, strict=True):
            self._ledger.write_submitted(allocation.folder, identity)
            allocation.identity = identity
            held = wishes[0].item.name + (f" +{len(wishes) - 1}" if len(wishes) > 1 else "")
            minutes = request.minutes(len(wishes))
            self._listener.say(f"job {allocation.job}: {held}, at most {minutes} min")
            for number, wish in enumerate(wishes):
                self._watch(allocation, number, wish)

    def _renounce(self, allocations: list[Allocation]) -> None:
        """Make sure that what may have been taken runs nothing: it will be sent again."""
        for allocation in allocations:
            for number in self._ledger.unsettled(allocation.folder):
                self._ledger.withdraw(allocation.folder, number)
        for batch in {allocation.folder.parent.name for allocation in allocations}:
            taken = self._scheduler.find(batch)
            self._scheduler.cancel([{"job": job} for job in taken or {}])

    def _wait_for(self, what: str, packs: list[list[Wish]]) -> None:
        """Keep wishes back until the next poll; why is said once."""
        if what not in self._told:
            self._told.add(what)
            self._listener.say(f"{what}; {sum(map(len, packs))} jobs wait here for it to pass")
        self._waiting += [wish for wishes in packs for wish in wishes]

    def _refuse(self, packs: list[list[Wish]], said: str) -> None:
        for wishes in packs:
            for wish in wishes:
                self._ledger.forget(wish.item.key)
                self._listener.failed(wish, f"the scheduler refused it: {said}", [])

    # -- wishes are settled -----------------------------------------------------------------------

    def poll(self) -> None:
        """Settle what has ended, and send what waits. One question to the scheduler at most."""
        with self._mutex:
            if self._cancelled:
                return
            asked = [a for a in self._open if a.identity is not None]
            states = (
                self._scheduler.states([a.identity for a in asked if a.identity]) if asked else {}
            )
            if (states is not None) != self._answers:
                self._answers = states is not None
                self._listener.say(
                    "the scheduler answers again"
                    if self._answers
                    else "the scheduler does not answer; jobs run on, and it is asked again"
                )
            for allocation in asked:
                self._settle(allocation)
                if allocation.waited_for and states is not None:
                    self._judge(allocation, states.get(allocation.job))
                if not allocation.waited_for:
                    self._open.close(allocation)
            self._send_waiting()

    def _settle(self, allocation: Allocation) -> None:
        settled = self._ledger.settled(allocation.folder)
        for number in sorted(settled.keys() & allocation.waited_for.keys()):
            wish, end = allocation.waited_for.pop(number), settled[number]
            if end.code == 0:
                self._listener.succeeded(wish)
            else:
                logs = self._ledger.log_of(allocation.folder, number)
                self._listener.failed(wish, f"job {allocation.job}: {_how(end, wish)}", logs)

    def _judge(self, allocation: Allocation, state: State | None) -> None:
        """What becomes of jobs that have not settled, given what the scheduler says."""
        if state is not None and state.live:
            allocation.ended_s = None
            held = "held" in state.reason.lower() or state.reason.endswith("Limit")
            if held and not allocation.warned:
                allocation.warned = True
                self._listener.say(f"job {allocation.job} waits: {state.reason}")
            return
        now = time.monotonic()
        if allocation.ended_s is None:
            allocation.ended_s = now
        surely = state is not None or self._limits.gpus is not None
        patience = self._limits.latency_s if surely else LOST_S
        if now - allocation.ended_s < patience:
            return
        word = state.word if state is not None else "gone, and nobody knows how"
        for number, wish in sorted(allocation.waited_for.items()):
            if allocation.reattached:  # it died while nobody watched: that was no attempt of ours
                self._waiting.append(wish)
            else:
                logs = self._ledger.log_of(allocation.folder, number)
                self._listener.failed(wish, f"job {allocation.job} is {word}", logs)
        allocation.waited_for.clear()

    # -- the end ----------------------------------------------------------------------------------

    def cancel(self) -> int:
        """End every job that is waited for; returns how many allocations were cancelled.

        A pack that was taken up and holds jobs of somebody else's run keeps those.
        """
        with self._mutex:
            self._cancelled = True
            self._waiting.clear()
            ending = []
            for allocation in self._open:
                mine = set(allocation.waited_for)
                for number, wish in allocation.waited_for.items():
                    self._ledger.withdraw(allocation.folder, number)
                    self._ledger.forget(wish.item.key)
                if allocation.identity is None:
                    batch = allocation.folder.parent.name
                    ending += [{"job": job} for job in self._scheduler.find(batch) or {}]
                elif not self._ledger.unsettled(allocation.folder) - mine:
                    ending.append(dict(allocation.identity))
            if ending:
                self._scheduler.cancel(ending)
            return len(ending)

    def detach(self) -> int:
        """Send nothing more and leave the rest running; returns how many allocations."""
        with self._mutex:
            self._cancelled = True
            self._waiting.clear()
            return len(self._open)


def _next_fits(
    packs: list[tuple[Request, list[Wish]]], request: Request, first: list[Wish]
) -> bool:
    return bool(packs) and packs[0][0].key == request.key and len(packs[0][1]) == len(first)


def _how(end: Settled, wish: Wish) -> str:
    if end.reason == "time limit":
        return f"its time limit of {wish.item.limit_s / 60:g} min was reached"
    if end.code < 0:
        return f"killed by signal {-end.code}"
    return f"exit code {end.code}"
