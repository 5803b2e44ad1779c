"""Wishes that wait to be sent, and how they become allocations."""

import contextlib
import tempfile
from collections.abc import Iterable
from pathlib import Path

from .allocations import Allocation, Allocations, Limits, Wish
from .backoff import Backoff
from .ledger import Ledger
from .listener import Listener
from .packing import packs_of
from .request import Request
from .schedulers import Refused, Scheduler
from .strays import Strays
from .unfit import UnfitHosts

# words of the scheduler that are not known are final after so many times in a row, five minutes
MOST_TRIES = 7


class Outbox:
    """Sends what waits as far as there is room; asks again later where it was not taken."""

    def __init__(
        self, *, ledger: Ledger, scheduler: Scheduler, limits: Limits, listener: Listener,
        directory: Path, in_flight: Allocations, unfit: UnfitHosts,
    ) -> None:  # fmt: skip
        self._ledger = ledger
        self._scheduler = scheduler
        self._limits = limits
        self._listener = listener
        self._directory = directory
        self._open = in_flight
        self._unfit = unfit
        self._strays = Strays(ledger, scheduler)
        self._backoff = Backoff()
        self._refusals: dict[str, str] = {}  # by request: asking again gives the same answer
        self._announced: set[str] = set()
        self._waiting: list[Wish] = []
        self._closed = False
        self.allocations_sent = 0

    def add(self, wishes: Iterable[Wish]) -> None:
        """Have these sent, the next time that anything is."""
        self._waiting += wishes

    def close(self) -> None:
        """Send nothing more; safe to call in a signal handler."""
        self._closed = True

    def clear(self) -> None:
        """Forget what waits."""
        self._waiting.clear()

    def room(self) -> None:
        """Something has ended, so there may be room for what was not taken."""
        self._backoff.room()

    def look_for_strays(self) -> None:
        """Cancel what was taken without a word, if it is there now."""
        self._strays.look()

    def send(self) -> None:
        """Send what waits as far as there is room; the rest goes on waiting."""
        if self._closed:
            self._give_up()
            return
        waiting, self._waiting = self._waiting, []
        ready: list[Wish] = []
        for wish in waiting:
            (self._waiting if self._open.holds_back(wish) else ready).append(wish)
        packs = packs_of(
            (
                (self._scheduler.avoiding(wish.request, self._unfit.left_out), wish)
                for wish in ready
            ),
            most=self._limits.pack,
            most_minutes=self._limits.pack_minutes,
        )
        while packs:
            request, first = packs.pop(0)
            gpus_each = request.gpus if self._scheduler.gpus is not None else 0
            room = self._open.room(gpus_each)
            if room == 0 or self._backoff.holds(request.kind):
                self._waiting += first
                continue
            together = [first]
            largest = self._scheduler.largest_array if self._limits.array else 1
            most = largest if room is None else min(room, largest)
            while len(together) < most and _next_fits(packs, request, first):
                together.append(packs.pop(0)[1])
            self._send(request, together, gpus_each)

    def _send(self, request: Request, packs: list[list[Wish]], gpus_each: int) -> None:
        words = self._refusals.get(request.key)
        if words is not None:
            self._refuse(packs, words)
            return
        allocations: list[Allocation] = []
        count, name = sum(map(len, packs)), packs[0][0].item.name
        batch, was_sent = None, False
        try:
            _try_to_write({output.parent for wish in packs[0] for output in wish.outputs})
            batch = self._ledger.open_batch()
            for number, wishes in enumerate(packs):
                # on disk before it is sent: if we die in between, the next run finds the job
                folder = batch / str(number)
                self._ledger.write_pack(
                    folder,
                    [wish.item for wish in wishes],
                    directory=self._directory,
                    environment=dict(request.environment),
                )
                allocations.append(Allocation(folder=folder, identity=None))
                self._open.add(allocations[-1], gpus=gpus_each)
            was_sent = True
            identities = self._scheduler.send(
                batch,
                [allocation.folder for allocation in allocations],
                request,
                name=name if count == 1 else f"{name} +{count - 1}",
                comment=f"snakemake in {self._directory.name}, {batch.name}",
                minutes=request.minutes,
                gpus=allocations[0].gpus,
            )
        except (Refused, OSError) as problem:  # OSError: a file system that is full or away
            for allocation in allocations:
                self._open.close(allocation)
            if batch is not None:
                if was_sent and (isinstance(problem, OSError) or problem.unsure):
                    self._strays.add(batch, request)
                else:
                    self._ledger.remove(batch)
            self._not_taken(problem, request, packs)
            return
        except BaseException:  # Ctrl-C
            if batch is not None:
                self._strays.add(batch, request)
            raise
        self._backoff.taken(request.kind)
        self.allocations_sent += len(allocations)
        for allocation, identity, wishes in zip(allocations, identities, packs, strict=True):
            allocation.identity = identity
            with contextlib.suppress(OSError):  # a full disk: a later run finds it by its name
                self._ledger.write_submitted(allocation.folder, identity)
            held = wishes[0].item.name + (f" +{len(wishes) - 1}" if len(wishes) > 1 else "")
            self._listener.say(f"job {allocation.job}: {held}, at most {request.minutes} min")
            for number, wish in enumerate(wishes):
                allocation.waited_for[number] = wish
                self._listener.sent(wish, allocation.job)

    def _not_taken(
        self, problem: Refused | OSError, request: Request, packs: list[list[Wish]]
    ) -> None:
        """Keep wishes back until it is time to ask again, or give them up."""
        words = str(problem)
        tries = self._backoff.refused(request.kind)
        if isinstance(problem, Refused):
            # other words may yet be those of a limit that what is in flight has reached
            hopeless = problem.kind == "unknown" and tries >= MOST_TRIES and not len(self._open)
            if problem.kind == "refused":
                self._refusals[request.key] = words
            if problem.kind == "refused" or hopeless:
                self._backoff.taken(request.kind)
                self._refuse(packs, words)
                return
        if words not in self._announced:
            self._announced.add(words)
            self._listener.say(f"{words}; {sum(map(len, packs))} jobs wait here for it to pass")
        self._waiting += [wish for wishes in packs for wish in wishes]

    def _refuse(self, packs: list[list[Wish]], words: str) -> None:
        for wishes in packs:
            for wish in wishes:
                self._ledger.forget(wish.item.key)
                self._listener.failed(wish, f"the scheduler refused it: {words}", [])

    def _give_up(self) -> None:
        waiting, self._waiting = self._waiting, []
        for wish in waiting:
            self._listener.failed(wish, "it was not sent: snakemake was told to end", [])


def _try_to_write(folders: Iterable[Path]) -> None:
    """Nothing is run whose results could not be written.

    Raises:
        OSError: there is no room for a megabyte.
    """
    for folder in folders:
        if folder.is_dir():
            with tempfile.TemporaryFile(dir=folder) as file:
                file.write(bytes(1_000_000))


def _next_fits(
    packs: list[tuple[Request, list[Wish]]], request: Request, first: list[Wish]
) -> bool:
    return bool(packs) and packs[0][0].key == request.key and len(packs[0][1]) == len(first)
