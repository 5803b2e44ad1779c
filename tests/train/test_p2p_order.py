"""Messages of stages meet their receivers, in order, in every schedule of both engines.

Each rank of a torch pipeline runs in this process, and its exchanges return at once. DeepSpeed's
ranks post what its schedules tell them to. Posts and waits are then played against each other as
NCCL does. Two ranks share a queue, in which a send meets a receive, and only the operations of one
batch may pass each other.
"""

import dataclasses
import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
import torch.distributed as dist
from deepspeed.runtime.pipe import schedule
from torch.distributed.pipelining import schedules
from torch.testing._internal.distributed.fake_pg import FakeStore

from scaling.layout.axes import V_SCHEDULES
from scaling.study.point import Point
from scaling.train.data import Feed
from scaling.train.engines.torch.rehearsal import patched
from scaling.train.engines.trainer import build, make_blueprint
from scaling.train.parallel.groups import Groups
from tests.points import TINY, tiny_point
from tests.train.conftest import skip_if_lacking
from tests.train.test_model import CPU

pytestmark = pytest.mark.slow

SCHEDULES = {"1f1b": 1, "interleaved": 2, "zero_bubble": 1, "zbv": 1, "dualpipev": 1}


@dataclass(eq=False)
class Exchange:
    """One message of a rank: to or from a peer, of some elements."""

    peer: int
    sends: bool
    elements: int
    done: bool = False


@dataclass
class Log:
    """The acts of a rank in order: it posts a batch (True), or waits for one (False)."""

    events: list[tuple[bool, list[Exchange]]] = field(default_factory=list)

    def post(self, operations: list[dist.P2POp], desc: str | None = None) -> list["Waited"]:
        """In place of torch's `_batch_p2p`."""
        batch = [Exchange(op.peer, op.op is dist.isend, op.tensor.numel()) for op in operations]
        mixed = len({one.sends for one in batch}) > 1
        for unit in [batch] if mixed else [[one] for one in batch]:  # as torch posts them
            self.events.append((True, unit))
        return [Waited(self, batch)] if batch else []


@dataclass
class Waited:
    """The work of a batch."""

    log: Log
    batch: list[Exchange]

    def wait(self) -> None:
        self.log.events.append((False, self.batch))


def log_of(point: Point, rank: int, monkeypatch: pytest.MonkeyPatch) -> Log:
    """The acts of a rank in one step."""
    log = Log()
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=point.layout.pp)
    try:
        groups = Groups(rank, point.layout, timeout_s=60)
        with monkeypatch.context() as context, patched(point, groups, lambda _: None):
            context.setattr(schedules, "_batch_p2p", log.post)
            trainer = build(make_blueprint(point, groups, CPU), groups)
            counts = [point.layout.gradient_accumulation_steps]
            trainer.step(Feed(point, groups.place, counts, first=0, device=CPU)(0))
    finally:
        dist.destroy_process_group()
    return log


def stuck(logs: list[Log]) -> list[int]:
    """The ranks that wait for ever; empty if every message arrives.

    Raises:
        AssertionError: a message meets a receive of another size.
    """
    queues: dict[tuple[int, int], list[list[Exchange]]] = {}  # by rank and peer
    left = [list(log.events) for log in logs]
    moves = True
    while moves:
        moves = False
        for rank, events in enumerate(left):
            while events and (events[0][0] or all(one.done for one in events[0][1])):
                posts, batch = events.pop(0)
                moves = True
                for peer in {one.peer for one in batch if posts}:
                    unit = [one for one in batch if one.peer == peer]
                    queues.setdefault((rank, peer), []).append(unit)
        for (rank, peer), own in queues.items():
            other = queues.get((peer, rank), [])
            while own and other and _meet(own[0], other[0]):
                moves = True
                for queue in (own, other):
                    if all(one.done for one in queue[0]):
                        queue.pop(0)
    unmet = {rank for (rank, _), queue in queues.items() if queue}
    return sorted(unmet | {rank for rank, events in enumerate(left) if events})


def _meet(own: list[Exchange], other: list[Exchange]) -> bool:
    """Let one message of two units arrive, if there is one."""
    for one, another in itertools.product(own, other):
        if not one.done and not another.done and one.sends != another.sends:
            assert one.elements == another.elements
            one.done = another.done = True
            return True
    return False


@pytest.fixture(autouse=True)
def without_a_group() -> Iterator[None]:
    assert not dist.is_initialized()
    yield
    assert not dist.is_initialized()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("rounds", [2, 4])  # micro-batches over stages
@pytest.mark.parametrize("pp", [2, 4])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_message_of_a_schedule_arrives(
    monkeypatch: pytest.MonkeyPatch, schedule: str, pp: int, rounds: int
) -> None:
    virtual = SCHEDULES[schedule]
    chunks = pp * (2 if schedule in V_SCHEDULES else virtual)
    shape = dataclasses.replace(TINY, num_layers=chunks)
    point = tiny_point(
        shape=shape, pp=pp, engine="torch", pipeline_schedule=schedule, virtual_stages=virtual,
        gradient_accumulation_steps=rounds * pp, global_batch_size=rounds * pp,
    )  # fmt: skip
    skip_if_lacking(point)
    logs = [log_of(point, rank, monkeypatch) for rank in range(pp)]
    assert all(log.events for log in logs)
    assert stuck(logs) == []


def log_of_deepspeed(kind: str, micro_batches: int, pp: int, rank: int) -> Log:
    """The acts of a rank of DeepSpeed: 1F1B sends and receives one by one, DualPipeV in batches.

    A message's elements stand for its number among those of its kind.
    """
    numbers: Counter[tuple[object, ...]] = Counter()
    units: list[list[tuple[int, bool, int]]] = []
    queued: list[tuple[int, bool, int]] = []
    of_kind = {"1f1b": schedule.TrainSchedule, "dualpipev": schedule.DualPipeVSchedule}[kind]
    for command in itertools.chain(*of_kind(micro_batches, pp, rank).steps()):
        name, phase = type(command).__name__, getattr(command, "phase", 0)
        if name.startswith(("Send", "Recv")):
            sends, is_gradient = name.startswith("Send"), name.endswith("Grad")
            # downstream is the next rank, and in the second half of a V the one before
            forward = (sends != is_gradient) != (phase == 1)
            numbers[sends, is_gradient, phase] += 1
            message = 4 * numbers[sends, is_gradient, phase] + 2 * phase + is_gradient
            queued.append((rank + (1 if forward else -1), sends, message))
        if queued and (kind == "1f1b" or name == "CommitP2P"):
            units.append(queued)
            queued = []
    assert not queued
    return made(*units)


@pytest.mark.parametrize("rounds", [2, 3, 8])
@pytest.mark.parametrize("pp", [2, 3, 4, 8])
@pytest.mark.parametrize("kind", ["1f1b", "dualpipev"])
def test_every_message_of_a_schedule_of_deepspeed_arrives(kind: str, pp: int, rounds: int) -> None:
    for micro_batches in (rounds * pp, rounds * pp + 1):
        logs = [log_of_deepspeed(kind, micro_batches, pp, rank) for rank in range(pp)]
        assert all(log.events for log in logs)
        assert stuck(logs) == []


def made(*units: list[tuple[int, bool, int]]) -> Log:
    """A rank that waits for each unit before it posts the next."""
    batches = [[Exchange(*one) for one in unit] for unit in units]
    return Log([(posts, batch) for batch in batches for posts in (True, False)])


def test_a_message_that_nobody_takes_is_found() -> None:
    give, take = (1, True, 8), (0, False, 8)
    assert stuck([made([give]), made([take])]) == []
    assert stuck([made([give]), made()]) == [0]
    other_give, other_take = (0, True, 8), (1, False, 8)
    assert stuck([made([other_take], [give]), made([take], [other_give])]) == [0, 1]
    assert stuck([made([other_take, give]), made([take, other_give])]) == []
    with pytest.raises(AssertionError):
        stuck([made([give]), made([(0, False, 4)])])
