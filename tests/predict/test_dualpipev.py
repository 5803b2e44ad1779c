"""How long a pipeline of DeepSpeed's DualPipeV idles, beside DeepSpeed's own instructions."""

from typing import Any

import numpy as np
import pytest
from deepspeed.runtime.pipe.schedule import DualPipeVSchedule

from scaling.predict.cost import communication
from scaling.predict.cost.step import TIME_TERMS, step_of
from tests.predict.test_step_arithmetic import IDEAL

pytestmark = pytest.mark.usefixtures("no_overheads")


def slots_taken(pp: int, rounds: int, passes: int) -> float:
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


@pytest.mark.parametrize(("checkpointing", "passes"), [("none", 3), ("full", 4)])
@pytest.mark.parametrize(("pp", "rounds"), [(2, 4), (4, 16), (8, 16), (8, 40)])
def test_it_idles_as_long_as_deepspeeds_schedule(
    points, pp, rounds, checkpointing, passes, monkeypatch
):
    row = {
        "framework": "scaling", "num_layers": 96, "pp": pp, "gradient_accumulation_steps": rounds,
        "pipeline_schedule": "dualpipev", "activation_checkpointing": checkpointing,
        "vocab_size": 1,
    }  # fmt: skip
    (group,) = points(row).groups
    monkeypatch.setattr(communication, "_MESSAGE_EFFICIENCY", 1e9)
    quiet = {**group.start, **IDEAL}
    terms = step_of(group, group.features, quiet, np.zeros(1)).terms
    slot = sum(terms[name] for name in TIME_TERMS[:7]) / rounds
    idle = terms["bubble_s"] / slot - (rounds - 1) * 0.01  # friction
    assert slots_taken(pp, rounds, passes) - rounds == pytest.approx(idle, abs=0.005)
