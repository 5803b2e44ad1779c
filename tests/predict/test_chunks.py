"""How long torch's pipelines idle, beside torch's own tables."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from torch.distributed.pipelining import schedules

from scaling.predict.cost import communication
from scaling.predict.cost.model import predict
from scaling.predict.cost.step import TIME_TERMS, step_of
from scaling.predict.read.points import points_of
from tests.predict.conftest import as_table, table_of
from tests.predict.test_step_arithmetic import IDEAL

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


@pytest.mark.parametrize("checkpointing", ["none", "full"])
@pytest.mark.parametrize(
    ("schedule", "virtual", "rounds", "off"),
    [("interleaved", 4, 16, 0.0), ("interleaved", 4, 4, 0.0), ("interleaved", 4, 3, 0.0),
     ("interleaved", 2, 1, 0.0), ("zero_bubble", 1, 16, 0.0), ("zero_bubble", 1, 2, 0.0),
     ("zero_bubble", 2, 16, 0.0), ("zero_bubble", 2, 2, 0.0), ("zbv", 2, 16, 0.05),
     ("dualpipev", 2, 16, 0.11)],
)  # fmt: skip
def test_a_pipeline_idles_as_long_as_torchs_schedule(
    points, schedule, virtual, rounds, off, checkpointing, monkeypatch
):
    """But for `off` of a slot a stage, also with fewer micro-batches than stages."""
    row = {
        "framework": "scaling torch", "num_layers": 48, "pp": 4,
        "gradient_accumulation_steps": rounds,
        "pipeline_schedule": schedule, "activation_checkpointing": checkpointing, "vocab_size": 1,
        "virtual_stages": 1 if schedule in ("zbv", "dualpipev") else virtual,
    }  # fmt: skip
    (group,) = points(row).groups
    monkeypatch.setattr(communication, "_MESSAGE_EFFICIENCY", 1e9)
    quiet = {**group.start, **IDEAL}
    terms = step_of(group, group.features, quiet, np.zeros(1)).terms
    slot = sum(terms[name] for name in TIME_TERMS[:7]) / rounds
    passes = 4 if checkpointing == "full" else 3
    weights = terms["gemm_s"] / rounds / passes / slot
    parts = {"FORWARD": 1 / passes, "FULL_BACKWARD": 1 - 1 / passes}
    parts |= {"BACKWARD_INPUT": 1 - 1 / passes - weights, "BACKWARD_WEIGHT": weights}
    idle = terms["bubble_s"] / slot - (rounds - 1) * 0.01  # friction
    taken = slots_taken(schedule, 4, virtual, rounds, parts)
    assert taken - rounds == pytest.approx(idle, abs=3 * off + 0.002)


def test_more_chunks_than_layers_are_no_layout_of_ours_and_say_so():
    experts = {"num_experts": 8, "experts_per_token": 2, "expert_ffn_hidden_size": 768}
    row = {**experts, "dense_layers": 1, "framework": "scaling torch", "num_layers": 30, "pp": 16}
    rows = [{**row, "virtual_stages": 4, "pipeline_schedule": "interleaved"},
            {**row, "pipeline_schedule": "zbv"}, row]  # fmt: skip
    found = points_of(as_table(table_of(*rows), "t"))
    reason = "a pipeline of more model chunks than num_layers"
    assert found.note.tolist() == [reason, reason, None]
    assert predict(found).predicted.tolist() == [False, False, True]
