"""The life of one rank of a probe: meet the others, run task after task, leave the records.

All ranks take part in every task at the same time; those outside its groups wait. Ranks agree
through the store at which they met, so that a probe does not depend on what it probes.
"""

import dataclasses
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined] # exported at run time only

from scaling.cluster.node import RankId
from scaling.probe.collectives import ELEMENT_BYTES, RankGroup, exchange, message_elements
from scaling.probe.devices import prepare_task, read_under_load, time_samples
from scaling.probe.host_facts import host_facts
from scaling.probe.plan import Group, ProbePlan, Task
from scaling.record.rank_files import ProbeEnd, ProbeRecords, RankFiles
from scaling.train.device import take_device
from scaling.train.failures import KernelUnavailable, failure_of, is_out_of_memory, leave
from scaling.train.measure.power import meter_of
from scaling.train.parallel.rendezvous import rendezvous

_DEVICE_TASK_S = 0.05
# Products of at least half of the largest one's FLOPs run this long before they are timed.
_SUSTAINED_S = 1.0
_MESSAGE_TASK_S = 0.25
_DEVICES_SHARE = 0.4  # of the time at most, since links are probed after devices
_COLLECTIVE_MARGIN_S = 120.0  # the parent ends a late rank, so no collective needs to
_SAVE_EVERY_S = 5.0
_LONGEST_MESSAGE = 400


def run(plan: ProbePlan, files: RankFiles, rank_id: RankId) -> NoReturn:
    """Probe, leave records or a failure, and end the process."""
    leave(rank_id.rank, files, lambda: Prober(plan, files, rank_id).probe())


class Prober:
    """Runs the tasks of one rank."""

    def __init__(self, plan: ProbePlan, files: RankFiles, rank_id: RankId) -> None:
        self.plan, self.files, self.rank = plan, files, rank_id.rank
        self.device = take_device(plan.gpu, rank_id.local_rank)
        files.beat(self.rank, "asking what the host is")
        facts = host_facts(self.device, first_on_host=rank_id.local_rank == 0)
        self.facts = facts | {"local_rank": rank_id.local_rank}
        self.records: list[dict[str, Any]] = []
        self._meter = meter_of(self.device)
        on_gpu = self.device.type == "cuda"
        synchronize: Callable[[], object] = partial(torch.cuda.synchronize, self.device)
        self._drain = synchronize if on_gpu else (lambda: None)
        # of a GPU's products the largest draw the most power
        largest = max(map(_products, plan.tasks))
        self._large = {task for task in plan.tasks if on_gpu and 2 * _products(task) > largest}
        self._saved_at = time.monotonic()
        files.beat(self.rank, "meeting the other ranks")
        timeout_s = plan.time_limit_s + _COLLECTIVE_MARGIN_S
        store = rendezvous(rank_id, files, self.device, timeout_s=timeout_s)
        own = store.clone()  # type: ignore[attr-defined] # torch's stubs lack it
        self._largest = Council(own, rank_id.world_size).largest
        self._align = partial(self._largest, 0.0)

    def probe(self) -> ProbeEnd:
        """Run the tasks until the time is up; tasks not reached have no record."""
        started = time.monotonic()
        made_for: Group | None = None  # the task's group for which `own` was made
        own: RankGroup | None = None
        for index, task in enumerate(self.plan.tasks):
            share = _DEVICES_SHARE if task.group is None else 1.0
            late = time.monotonic() - started > share * self.plan.time_limit_s
            if self._largest(float(late and self.rank == 0)):
                continue
            self._save(f"task {index + 1} of {len(self.plan.tasks)}: {task.kind}")
            if task.group is None:
                self._on_device(index, task)
                continue
            if made_for is None or not task.group.has_same_ranks(made_for):
                self._destroy(own)
                made_for, own = task.group, self._make_groups(task.group)
            members = task.group.members(self.plan.world_size)
            self._in_groups(index, task, own if own and own.ranks in members else None)
        self._destroy(own)
        self.files.write(self.rank, ProbeRecords(facts=self.facts, records=self.records))
        return ProbeEnd()

    def _on_device(self, index: int, task: Task) -> None:
        """Run a task on all devices at once, as in training: they share power and memory."""
        record: dict[str, Any] = {"task": index}
        work = None
        try:
            work = prepare_task(task, self.device)
        except (KernelUnavailable, MemoryError, RuntimeError) as error:
            record |= _outcome_and_message(error)
        self._align()
        large = task in self._large
        try:
            if work is not None:
                warm_s = _SUSTAINED_S if large else 0.0
                record["samples"] = time_samples(
                    work, drain=self._drain, budget_s=_DEVICE_TASK_S, warm_s=warm_s
                )
                if self._meter is not None and large:
                    record |= read_under_load(work, self._meter)
                    self._drain()
        except (MemoryError, RuntimeError) as error:
            record |= _outcome_and_message(error)
        self.records.append(record)

    def _in_groups(self, index: int, task: Task, group: RankGroup | None) -> None:
        """Run a collective in its groups; `group` is this rank's, None if it only waits."""
        assert task.message_bytes is not None
        collective, failure, wrong = None, {}, False
        if group is not None:
            elements = message_elements(task.message_bytes, len(group.ranks))
            try:
                collective = exchange(task.kind, group, elements)  # type: ignore[arg-type]
                collective.fill()
            except (MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error):
                    raise
                failure = {"task": index, **_outcome_and_message(error)}
        if self._largest(float(bool(failure))):  # no rank may wait for one that cannot send
            self.records += [failure] if failure else []
            return
        if collective is not None:
            collective.send()
            self._drain()
            wrong = collective.is_wrong()
            collective.fill()
        samples = time_samples(
            collective.send if collective is not None else lambda: None,
            drain=self._drain,
            budget_s=_MESSAGE_TASK_S,
            agree=self._largest,
            align=self._align,
        )
        if group is None:
            return
        slowest = torch.tensor(samples, dtype=torch.float64, device=self.device)
        dist.all_reduce(slowest, dist.ReduceOp.MAX, group=group.group)
        if group.index == 0 or wrong:
            self.records.append(
                {
                    "task": index, "ranks": list(group.ranks), "samples": slowest.tolist(),
                    "message_bytes": elements * ELEMENT_BYTES, "wrong": wrong,
                }
            )  # fmt: skip

    def _make_groups(self, shape: Group) -> RankGroup | None:
        """Make all groups of this shape, which is collective over all ranks; return this rank's."""
        own = None
        for ranks in dataclasses.replace(shape, at_once=True).members(self.plan.world_size):
            group = dist.new_group(list(ranks))
            if self.rank in ranks:
                own = RankGroup(ranks, ranks.index(self.rank), group, self.device)
        return own

    def _destroy(self, group: RankGroup | None) -> None:
        """Free a group: communicators hold device memory, and a study may have dozens."""
        self._align()
        if group is not None:
            dist.destroy_process_group(group.group)

    def _save(self, doing: str) -> None:
        """Save the records now and then. The parent ends silent ranks and keeps what they saved."""
        now = time.monotonic()
        if now - self._saved_at >= _SAVE_EVERY_S or not self.records:
            self.files.beat(self.rank, doing)
            self.files.write(self.rank, ProbeRecords(facts=self.facts, records=self.records))
            self._saved_at = now


class Council:
    """Finds the largest of the ranks' values, one question after the other.

    A gloo group would connect every two ranks. Here each rank adds its value to one text, and the
    last one to do so reads it. The texts of two questions are kept: a rank that asks the next one
    has read the answer before.

    Args:
        store: a client of this rank's own, which nothing else waits on.
        world_size: ranks that take part in every question.
    """

    def __init__(self, store: TCPStore, world_size: int) -> None:
        self._store, self._world_size, self._question = store, world_size, 0

    def largest(self, value: float) -> float:
        """The largest value; every rank waits until all have given theirs."""
        self._question += 1
        values, answered, answer = (
            f"council/{self._question}/{part}" for part in ("values", "answered", "answer")
        )
        # torch's stubs lack the call
        self._store.append(values, f"{value!r} ")  # type: ignore[attr-defined]
        if self._store.add(answered, 1) == self._world_size:
            given = self._store.get(values).decode().split()
            for key in (values, answered, f"council/{self._question - 1}/answer"):
                self._store.delete_key(key)
            self._store.set(answer, repr(max(map(float, given))))
        return float(self._store.get(answer))


def _products(task: Task) -> int:
    """Multiplications of a matrix product; 0 of other tasks."""
    return (task.m or 0) * (task.n or 0) * (task.k or 0)


def _outcome_and_message(error: BaseException) -> dict[str, Any]:
    """Both columns of a record whose task failed."""
    failure = failure_of(error)
    return {"outcome": failure.outcome, "message": failure.message[:_LONGEST_MESSAGE]}
