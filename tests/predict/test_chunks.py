"""How long pipelines idle, beside the schedules of torch and DeepSpeed themselves."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from deepspeed.runtime.pipe.schedule import DualPipeVSchedule
from torch.distributed.pipelining import schedules

from scaling.predict.cost import communication
from scaling.predict.cost.step import TIME_TERMS, step_of
from tests.predict.conftest import IDEAL

pytestmark = pytest.mark.usefixtures("no_overheads")

TABLES = {
    "interleaved": schedules.ScheduleInterleaved1F1B,
    "zero_bubble": schedules.ScheduleInterleavedZeroBubble,
    "zbv": schedules.ScheduleZBVZeroBubble,
    "dualpipev": schedules.ScheduleDualPipeV,
}


def actions(schedule: str, pp: int, virtual: int, rounds: int, rank: int) -> list[Any]:
    """The passes of a rank of torch's schedule, in order."""
    asked = SimpleNamespace(
        pp_group_size=pp, _n_microbatches=rounds, num_stages=pp * virtual, n_local_stages=virtual,
        microbatches_per_round=rounds // max(1, rounds // pp),
    )  # fmt: skip
    table = TABLES[schedule]._calculate_single_rank_operations(asked, rank)  # type: ignore[attr-defined]
    return [one for each in table if each for one in each.sub_actions or (each,)]


def slots_taken(
    schedule: str, pp: int, virtual: int, rounds: int, parts: dict[str, float]
) -> float:
    """Slots of a stage until torch's schedule ends, of chunks whose passes have these parts."""
    waiting = [actions(schedule, pp, virtual, rounds, rank) for rank in range(pp)]
    now, done = [0.0] * pp, {}
    while any(waiting):
        for rank, todo in enumerate(waiting):
            while todo:
                kind, stage, batch = todo[0].computation_type.name, *todo[0][::2]
                needs = [("FORWARD", stage - 1, batch)] if kind == "FORWARD" and stage else []
                if kind != "FORWARD" and stage < pp * virtual - 1:
                    needs.append(("BACKWARD", stage + 1, batch))
                if not all(need in done for need in needs):
                    break
                ends = max([now[rank], *(done[need] for need in needs)]) + parts[kind] / virtual
                now[rank] = done[kind.replace("FULL_", "").removesuffix("_INPUT"), stage, batch] = (
                    ends
                )
                todo.pop(0)
    return max(now)


@pytest.fixture
def idle_of(points, monkeypatch):
    """Slots of a stage that a step is predicted to idle, and its share of weights' gradients."""
    monkeypatch.setattr(communication, "_MESSAGE_EFFICIENCY", 1e9)

    def found(rounds, checkpointing, **row):
        row |= {"gradient_accumulation_steps": rounds, "activation_checkpointing": checkpointing}
        (group,) = points({**row, "vocab_size": 1}).groups
        quiet = {**group.start, **IDEAL}
        terms = step_of(group, group.features, quiet, np.zeros(1)).terms
        slot = sum(terms[name] for name in TIME_TERMS[:7]) / rounds
        weights = terms["gemm_s"] / rounds / PASSES[checkpointing] / slot
        return terms["bubble_s"] / slot - (rounds - 1) * 0.01, weights  # friction

    return found


PASSES = {"none": 3, "full": 4}  # forwards that a forward and a backward take


@pytest.mark.parametrize("checkpointing", ["none", "full"])
@pytest.mark.parametrize(
    ("schedule", "virtual", "rounds", "off"),
    [("interleaved", 4, 16, 0.0), ("interleaved", 4, 4, 0.0), ("interleaved", 4, 3, 0.0),
     ("interleaved", 2, 1, 0.0), ("zero_bubble", 1, 16, 0.0), ("zero_bubble", 1, 2, 0.0),
     ("zero_bubble", 2, 16, 0.0), ("zero_bubble", 2, 2, 0.0), ("zbv", 2, 16, 0.05),
     ("dualpipev", 2, 16, 0.11)],
)  # fmt: skip
def test_a_pipeline_idles_as_long_as_torchs_schedule(
    idle_of, schedule, virtual, rounds, off, checkpointing
):
    """But for `off` of a slot a stage, also with fewer micro-batches than stages."""
    chunks = 1 if schedule in ("zbv", "dualpipev") else virtual
    idle, weights = idle_of(
        rounds, checkpointing, framework="scaling torch", num_layers=48, pp=4,
        pipeline_schedule=schedule, virtual_stages=chunks,
    )  # fmt: skip
    forward = 1 / PASSES[checkpointing]
    parts = {"FORWARD": forward, "FULL_BACKWARD": 1 - forward}
    parts |= {"BACKWARD_INPUT": 1 - forward - weights, "BACKWARD_WEIGHT": weights}
    taken = slots_taken(schedule, 4, virtual, rounds, parts)
    assert taken - rounds == pytest.approx(idle, abs=3 * off + 0.002)


def deepspeeds_slots(pp: int, rounds: int, passes: int) -> float:
    """Slots of a rank's two chunks until the schedule ends; a backward takes passes - 1 forwards.

    A message leaves with the sender's next commit, and the receiver's commit waits for it.
    """
    waiting = [
        [one for step in DualPipeVSchedule(rounds, pp, rank).steps() for one in step]
        for rank in range(pp)
    ]
    now, sent = [0.0] * pp, {}
    queued: list[list[Any]] = [[] for _ in range(pp)]
    awaited: list[list[Any]] = [[] for _ in range(pp)]
    while any(waiting):
        for rank, todo in enumerate(waiting):
            while todo:
                kind, said = todo[0].name, todo[0].kwargs
                if kind == "CommitP2P":
                    sent |= dict.fromkeys(queued[rank], now[rank])
                    queued[rank] = []
                    if not all(message in sent for message in awaited[rank]):
                        break
                    now[rank] = max([now[rank], *(sent[one] for one in awaited[rank])])
                    awaited[rank] = []
                elif kind in ("ForwardPass", "BackwardPass"):
                    now[rank] += (1 if kind == "ForwardPass" else passes - 1) / passes / 2
                elif kind.startswith(("Send", "Recv")):
                    batch = said["buffer_id"] % rounds
                    stage = 2 * pp - 1 - rank if said["phase"] else rank
                    forward = kind.endswith("Activation")
                    if kind.startswith("Recv"):
                        awaited[rank].append((forward, stage + (-1 if forward else 1), batch))
                    else:
                        queued[rank].append((forward, stage, batch))
                todo.pop(0)
    return max(now)


@pytest.mark.parametrize("checkpointing", PASSES)
@pytest.mark.parametrize(("pp", "rounds"), [(2, 4), (4, 16), (8, 16), (8, 40)])
def test_dualpipev_idles_as_long_as_deepspeeds_schedule(idle_of, pp, rounds, checkpointing):
    idle, _ = idle_of(
        rounds, checkpointing, framework="scaling", num_layers=96, pp=pp,
        pipeline_schedule="dualpipev",
    )  # fmt: skip
    taken = deepspeeds_slots(pp, rounds, PASSES[checkpointing])
    assert taken - rounds == pytest.approx(idle, abs=0.005)
