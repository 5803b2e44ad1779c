"""Traces written by hand: gloo's as they are on a CPU, NCCL's as Kineto writes them on a GPU."""

import pytest

from scaling.train.measure.window import (
    LAUNCH,
    OPTIMIZER,
    STEP,
    Event,
    split_step_time,
    unusable_reason,
)

THREADS = {"main": 1, "tp": 2, "dp": 3}  # of the ranks' own work, and of gloo's groups


def trace(text: str) -> list[Event]:
    """The events of a text: each has a kind, a name but for steps, and a time; `;` separates them.

    On the host `step`, `op`, `launch` (a call that starts a communication), `gloo` and `mark` (an
    annotation, as `nccl:all_reduce#7`); on the device `kernel` and `drawn` (a mark's). `@tp` is a
    thread; all others run on the main one.
    """
    return [_event(*one.split()) for one in text.replace("\n", ";").split(";") if one.strip()]


def _event(kind: str, *words: str) -> Event:
    thread = next(
        (word[1:] for word in words if word[0] == "@"), "main" if kind != "gloo" else "tp"
    )
    *names, time = (word for word in words if word[0] != "@")
    start, _, end = time.partition("-")
    name, _, number = "|".join(names).partition("#")
    prefix = {"step": STEP, "op": "aten::", "launch": f"{LAUNCH}|", "gloo": "gloo:"}.get(kind, "")
    on_device = kind in ("kernel", "drawn")
    return Event(
        name=f"{prefix}{name}".replace("optimizer", OPTIMIZER),
        start=float(start),
        end=float(end) if end else float(start) + 0.01,
        thread=0 if on_device else THREADS[thread],
        on_device=on_device,
        annotation=kind not in ("op", "kernel"),
        id=int(number or 0),
    )


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        pytest.param(
            "step 0-10; op mm 0-4; launch all_reduce dp 2.9; gloo all_reduce 3-7",
            {"compute": 4, "comm": 4, "exposed_comm": 3, "idle": 3, "all_reduce": 4, "dp_comm": 4,
             "tp_comm": 0, "optimizer": None},
            id="what computing hides is not exposed",
        ),
        pytest.param(
            "step 0-1; op mm 0-1; step 5-8; op mm 5-6; op mm 3-4",
            {"compute": 1, "idle": 1},  # (1 + 1) / 2; what ran between the steps does not count
            id="seconds are those of one step",
        ),
        pytest.param(
            "step 0-4; gloo all_gather 1-3; op mm 2-3 @tp",
            {"compute": 0, "all_gather": 2, "exposed_comm": 2},
            id="what gloos threads do is not computing",
        ),
        pytest.param(
            "step 0-4; launch reduce_scatter tp 0; gloo all_reduce 1-3",
            {"reduce_scatter": 2, "all_reduce": 0, "tp_comm": 2},
            id="gloos reduce-scatter, which is an all-reduce, goes by what was called",
        ),
        pytest.param(
            # the third call (tp) starts before the second (dp), which waits in its queue
            """step 0-10
            launch all_gather dp 0.0; launch all_gather dp 0.1; launch all_gather tp 0.2
            launch all_gather tp 5.0; launch all_gather tp 7.0; launch all_gather dp 8.5
            gloo all_gather 0.1-2 @dp; gloo all_gather 0.3-1; gloo all_gather 2-4 @dp
            gloo all_gather 5-6; gloo all_gather 7-8; gloo all_gather 9-10 @dp""",
            {"tp_comm": 0.7 + 1 + 1, "dp_comm": 1.9 + 2 + 1},
            id="a call that overtakes another group keeps its axis",
        ),
        pytest.param(
            "step 0-4; launch all_reduce tp 0; gloo all_reduce 0-1; gloo all_reduce 2-3",
            {"all_reduce": 2, "tp_comm": 0},
            id="where calls and spans do not pair the axis stays unknown",
        ),
        pytest.param(
            "step 0-10; op mm 4-9; launch send_recv pp 0; gloo recv 0-5 @main",
            {"send_recv": 5, "pp_comm": 5, "pipeline_bubble": 4, "compute": 5},
            id="a stage that waits for its neighbour is the bubble",
        ),
        pytest.param(
            # a norm over all ranks and a loss that is sent to all
            """step 0-20; launch send_recv pp 0; gloo recv 0-2 @main
            launch all_reduce pp 3; gloo all_reduce 3-8; launch broadcast pp 9; gloo broadcast 9-10
            launch send_recv cp 11; gloo send 11-15 @main""",
            {"pipeline_bubble": 2, "pp_comm": 8, "cp_comm": 4, "exposed_comm": 12,
             "all_reduce": 5, "broadcast": 1, "send_recv": 6},
            id="what stages share by collectives is no bubble",
        ),
        pytest.param(
            "step 0-10; op mm 0-6; op mm 7-9; mark optimizer 6-9.5",
            {"optimizer": 3.5, "compute": 8, "idle": 2},
            id="the optimizers seconds are a part of the others",
        ),
        pytest.param(
            # the host has launched it all by second 3; both streams are at it from 5 to 8
            """step 0-10; kernel gemm 0-5; kernel multi_tensor_apply_kernel 5-8; mark optimizer 2-3
            drawn optimizer 5-7; drawn optimizer 6-8""",
            {"optimizer": 3},
            id="on a gpu the optimizer works where its kernels do",
        ),
        pytest.param(
            "step 0-10; kernel gemm 0-5; kernel multi_tensor_apply_kernel 5-8; mark optimizer 2-3",
            {"optimizer": None},
            id="an optimizer that is not drawn is unknown",
        ),
        pytest.param(
            """step 0-20; launch all_reduce tp 0-0.3; mark nccl:all_reduce#7 0.1-0.2
            drawn nccl:all_reduce#7 2-6; launch all_to_all cp 1-1.3
            mark nccl:all_to_all#8 1.1-1.2; drawn nccl:all_to_all#8 10-13
            op mm 0-20; drawn scaling.step 0-20
            kernel ncclDevKernel_AllReduce_Sum_bf16_RING_LL 2-6; kernel ncclDevKernel_SendRecv 10-13
            kernel sm90_xmma_gemm_bf16 5-9; kernel Memcpy_DtoD 14-15""",
            {"compute": 5, "comm": 7, "exposed_comm": 6, "idle": 9, "all_reduce": 4, "tp_comm": 4,
             "all_to_all": 3, "send_recv": 0, "cp_comm": 3},
            id="kernels of nccl communicate and all others compute",
        ),
        pytest.param(
            "step 0-4; kernel ncclDevKernel_ReduceScatter_Sum_f32_RING_LL 1-3",
            {"reduce_scatter": 2, "comm": 2, "tp_comm": None, "cp_comm": None, "dp_comm": None,
             "pp_comm": None},
            id="a kernel whose call is not in the trace has a kind but no axis",
        ),
    ],
)  # fmt: skip
def test_a_steps_seconds_are_split(text: str, seconds: dict[str, float | None]) -> None:
    spent = split_step_time(trace(text))
    assert {name: spent[f"{name}_s"] for name in seconds} == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "holds no 'scaling.step'"),
        ("step 0-10; op mm 0-9", "no kernel"),
        ("step 0-10; kernel gemm 1-9.5; step 20-30", "no kernel in the last 100%"),
        ("step 0-10; kernel gemm 1-8", "no kernel in the last 20%"),
        ("step 0-10; kernel gemm 1-4", "no kernel in the last 60%"),
        ("step 0-10; kernel gemm 1-9.5", None),
        # an optimizer on the host works until 9.7
        ("step 0-10; kernel gemm 1-4; mark optimizer 4.5-9.7", None),
    ],
)
def test_a_window_that_did_not_see_all_says_so(text: str, reason: str | None) -> None:
    found = unusable_reason(trace(text), on_gpu=True)
    assert found is None if reason is None else reason in str(found)
    assert unusable_reason(trace("step 0-10; op mm 0-1"), on_gpu=False) is None
