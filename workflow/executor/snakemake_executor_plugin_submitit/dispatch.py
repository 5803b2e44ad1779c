"""Wishes become allocations, and allocations settle wishes; nothing here knows of Snakemake."""

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from .allocations import Allocation, Allocations, Limits, Wish
from .ledger import Ledger, Settled
from .listener import Listener
from .outbox import Outbox
from .reattach import Reattachment
from .schedulers import Scheduler, State
from .unfit import UnfitHosts

# an allocation that no command of the scheduler knows any more is lost after this
LOST_S = 60.0
# allocations that may end before a wish began in them, until that counts as an attempt of the wish
MOST_UNCHARGED = 3


class Dispatcher:
    """Thread-safe: wishes come from Snakemake's thread and are settled in the polling thread."""

    def __init__(
        self, *, ledger: Ledger, scheduler: Scheduler, limits: Limits, listener: Listener,
        directory: Path,
    ) -> None:  # fmt: skip
        self._ledger = ledger
        self._scheduler = scheduler
        self._limits = limits
        self._listener = listener
        self._mutex = threading.RLock()
        self._open = Allocations(most=limits.max_allocations, gpus=scheduler.gpus or 0)
        self._unfit = UnfitHosts()
        self._outbox = Outbox(
            ledger=ledger, scheduler=scheduler, limits=limits, listener=listener,
            directory=directory, in_flight=self._open, unfit=self._unfit,
        )  # fmt: skip
        self._uncharged: Counter[str] = Counter()  # by job
        self._cancelled = False
        self._answers = True

    @property
    def allocations_sent(self) -> int:
        """How many there were."""
        return self._outbox.allocations_sent

    # -- wishes come ------------------------------------------------------------------------------

    def take(self, wishes: Sequence[Wish]) -> None:
        """Take up what an earlier run has sent, and send the rest off in packs."""
        with self._mutex:
            earlier = Reattachment(self._ledger, self._scheduler, wishes)
            taken_up: Counter[str] = Counter()
            for wish in wishes:
                place = earlier.place_of(wish)
                if place is None:
                    self._listener.prepare(wish)
                    self._outbox.add([wish])
                    continue
                folder, number = place
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
            self._outbox.send()

    def _watch(self, allocation: Allocation, number: int, wish: Wish) -> None:
        allocation.waited_for[number] = wish
        self._listener.sent(wish, allocation.job)

    # -- wishes are settled -----------------------------------------------------------------------

    def poll(self) -> None:
        """Settle what has ended, and send what waits. One question to the scheduler at most."""
        with self._mutex:
            if self._cancelled:
                return
            submitted = [a for a in self._open if a.identity is not None]
            states = (
                self._scheduler.states([a.identity for a in submitted if a.identity])
                if submitted
                else {}
            )
            if (states is not None) != self._answers:
                self._answers = states is not None
                self._listener.say(
                    "the scheduler answers again"
                    if self._answers
                    else "the scheduler does not answer; jobs run on, and it is asked again"
                )
            self._outbox.look_for_strays()
            self._open.poll_begins()
            for allocation in submitted:
                self._settle(allocation)
                if allocation.waited_for and states is not None:
                    self._judge(allocation, states.get(allocation.job))
                if not allocation.waited_for:
                    self._open.close(allocation)
                    self._outbox.room()
            self._outbox.send()

    def _settle(self, allocation: Allocation) -> None:
        settled = self._ledger.settled(allocation.folder)
        for number in sorted(settled.keys() & allocation.waited_for.keys()):
            wish, end = allocation.waited_for.pop(number), settled[number]
            if end.code == 0:
                self._listener.succeeded(wish)
            else:
                self._open.failed(wish, allocation)
                logs = self._ledger.log_of(allocation.folder, number)
                self._listener.failed(wish, f"job {allocation.job}: {_how(end, wish)}", logs)

    def _judge(self, allocation: Allocation, state: State | None) -> None:
        """What becomes of jobs that have not settled, given what the scheduler says."""
        if not self._is_over(allocation, state):
            return
        self._blame_host(allocation)
        began = self._ledger.began(allocation.folder)
        started = self._ledger.started(allocation.folder)
        # one that failed before its worker ran would do so again: each wish is told of it
        never_ran = state is not None and state.failed and not started
        last_words = self._ledger.last_words(allocation.folder, allocation.job) if never_ran else ""
        word = state.word if state is not None else "gone, and nobody knows how"
        why = f"job {allocation.job} is {word}" + (f": {last_words}" if last_words else "")
        left = dict(allocation.waited_for)
        self._end(allocation)  # if it lives unseen after all, or is about to be restarted
        allocation.waited_for.clear()
        for number, wish in sorted(left.items()):
            spared = number not in began or (state is not None and state.preempted)
            if self._is_finished(wish):
                self._listener.succeeded(wish)
            elif (
                allocation.reattached  # it died while nobody watched: no attempt of ours
                or (spared and not never_ran and self._for_free(wish))
            ):
                self._outbox.add([wish])
            else:
                logs = self._ledger.log_of(allocation.folder, number)
                self._listener.failed(wish, why, logs)

    def _is_over(self, allocation: Allocation, state: State | None) -> bool:
        """Whether it has ended, and long enough ago for all that it wrote to be seen here."""
        if state is not None and state.live:
            allocation.ended_s = None
            if state.stuck and not allocation.warned:
                allocation.warned = True
                self._listener.say(f"job {allocation.job} waits: {state.reason}")
            return False
        now = time.monotonic()
        if allocation.ended_s is None:
            allocation.ended_s = now
        surely = state is not None or not self._scheduler.forgets
        return now - allocation.ended_s >= (self._limits.latency_s if surely else LOST_S)

    def _is_finished(self, wish: Wish) -> bool:
        """Whether what it makes is there, where a file that is there is finished."""
        there = bool(wish.outputs) and all(output.exists() for output in wish.outputs)
        return self._limits.whole_outputs and there

    def _for_free(self, wish: Wish) -> bool:
        """Whether a wish that is not to blame may be sent again as if nothing had been."""
        self._uncharged[wish.item.key] += 1
        return self._uncharged[wish.item.key] <= MOST_UNCHARGED

    def _blame_host(self, allocation: Allocation) -> None:
        unfit = self._ledger.unfit(allocation.folder)
        if unfit is None:
            return
        host, why = unfit
        self._listener.say(f"job {allocation.job} could run nothing on {host}: {why}")
        if self._unfit.blame(allocation.folder, host, why):
            self._listener.say(f"{host} gets nothing more")

    # -- the end ----------------------------------------------------------------------------------

    def _end(self, *allocations: Allocation) -> int:
        """Withdraw what is waited for of these; how many of them were cancelled for it.

        A pack that was taken up and holds jobs of somebody else's run keeps those.
        """
        ending = []
        for allocation in allocations:
            mine = set(allocation.waited_for)
            for number in mine:
                with contextlib.suppress(OSError):  # a full disk; it will be cancelled, too
                    self._ledger.withdraw(allocation.folder, number)
            if (
                allocation.identity is not None
                and not self._ledger.unsettled(allocation.folder) - mine
            ):
                ending.append(dict(allocation.identity))
        if ending:
            self._scheduler.cancel(ending)
        return len(ending)

    def cancel(self) -> int:
        """End every job that is waited for; returns how many allocations were cancelled."""
        with self._mutex:
            self._cancelled = True
            self._outbox.clear()
            for allocation in self._open:
                for wish in allocation.waited_for.values():
                    self._ledger.forget(wish.item.key)
            self._outbox.look_for_strays()
            return self._end(*self._open)

    def detach(self) -> int:
        """Send nothing more and leave the rest running; returns how many allocations."""
        with self._mutex:
            self._cancelled = True
            self._outbox.clear()
            return len(self._open)

    def send_no_more(self) -> None:
        """What waits here is given up at the next poll; safe to call in a signal handler."""
        self._outbox.close()

    def report(self) -> list[str]:
        """What a user should know when all is over, a sentence each."""
        return self._unfit.report()


def _how(end: Settled, wish: Wish) -> str:
    if end.reason == "time limit":
        return f"its time limit of {wish.item.limit_s / 60:g} min was reached"
    if end.code < 0:
        return f"killed by signal {-end.code}"
    return f"exit code {end.code}"
