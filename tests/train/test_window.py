"""Traces written by hand: gloo's as they are on a CPU, NCCL's as Kineto writes them on a GPU."""

import pytest

from scaling.train.measure.window import OPTIMIZER, STEP, Event, split_step_time, unusable_reason

MAIN, TP_WORKER, DP_WORKER = 1, 2, 3


def step(start: float, end: float) -> Event:
    return Event(name=STEP, start=start, end=end, thread=MAIN, annotation=True)


def operator(start: float, end: float, thread: int = MAIN) -> Event:
    return Event(name="aten::mm", start=start, end=end, thread=thread)


def launch(kind: str, axis: str, start: float, end: float | None = None) -> Event:
    return Event(
        name=f"scaling.launch|{kind}|{axis}",
        start=start,
        end=start + 0.01 if end is None else end,
        thread=MAIN,
        annotation=True,
    )


def gloo(title: str, start: float, end: float, thread: int = TP_WORKER) -> Event:
    return Event(name=f"gloo:{title}", start=start, end=end, thread=thread, annotation=True)


def kernel(name: str, start: float, end: float) -> Event:
    return Event(name=name, start=start, end=end, on_device=True)


def annotated(name: str, start: float, end: float, number: int, on_device: bool = False) -> Event:
    thread = 0 if on_device else MAIN
    return Event(
        name=name,
        start=start,
        end=end,
        thread=thread,
        on_device=on_device,
        annotation=True,
        id=number,
    )


def test_what_computing_hides_is_not_exposed() -> None:
    """Ten seconds: computing 0-4, communicating 3-7, then nothing."""
    spent = split_step_time(
        [
            step(0, 10),
            operator(0, 4),
            launch("all_reduce", "dp", 2.9),
            gloo("all_reduce", 3, 7),
        ]
    )
    assert (spent["compute_s"], spent["comm_s"]) == (4, 4)
    assert (spent["exposed_comm_s"], spent["idle_s"]) == (3, 3)
    assert (spent["all_reduce_s"], spent["dp_comm_s"], spent["tp_comm_s"]) == (4, 4, 0)


def test_seconds_are_those_of_one_step() -> None:
    spent = split_step_time(
        [step(0, 1), operator(0, 1), step(5, 8), operator(5, 6), operator(3, 4)]
    )
    assert spent["compute_s"] == 1  # (1 + 1) / 2; what ran between the steps does not count
    assert spent["idle_s"] == 1


def test_what_gloos_threads_do_is_not_computing() -> None:
    events = [step(0, 4), gloo("all_gather", 1, 3), operator(2, 3, thread=TP_WORKER)]
    spent = split_step_time(events)
    assert (spent["compute_s"], spent["all_gather_s"], spent["exposed_comm_s"]) == (0, 2, 2)


def test_gloos_reduce_scatter_goes_by_what_was_called() -> None:
    """Gloo makes it of an all-reduce."""
    spent = split_step_time(
        [step(0, 4), launch("reduce_scatter", "tp", 0), gloo("all_reduce", 1, 3)]
    )
    assert (spent["reduce_scatter_s"], spent["all_reduce_s"], spent["tp_comm_s"]) == (2, 0, 2)


def test_a_call_that_overtakes_another_group_keeps_its_axis() -> None:
    """The third call (tp) starts before the second (dp), which waits in its queue."""
    events = [
        step(0, 10),
        launch("all_gather", "dp", 0.0),
        launch("all_gather", "dp", 0.1),
        launch("all_gather", "tp", 0.2),
        launch("all_gather", "tp", 5.0),
        launch("all_gather", "tp", 7.0),
        launch("all_gather", "dp", 8.5),
        gloo("all_gather", 0.1, 2, DP_WORKER),
        gloo("all_gather", 0.3, 1, TP_WORKER),
        gloo("all_gather", 2, 4, DP_WORKER),
        gloo("all_gather", 5, 6, TP_WORKER),
        gloo("all_gather", 7, 8, TP_WORKER),
        gloo("all_gather", 9, 10, DP_WORKER),
    ]
    spent = split_step_time(events)
    assert spent["tp_comm_s"] == pytest.approx(0.7 + 1 + 1)
    assert spent["dp_comm_s"] == pytest.approx(1.9 + 2 + 1)


def test_where_calls_and_spans_do_not_pair_the_axis_stays_unknown() -> None:
    events = [step(0, 4), launch("all_reduce", "tp", 0), gloo("all_reduce", 0, 1)]
    spent = split_step_time([*events, gloo("all_reduce", 2, 3)])
    assert (spent["all_reduce_s"], spent["tp_comm_s"]) == (2, 0)


def test_a_stage_that_waits_for_its_neighbour_is_the_bubble() -> None:
    events = [
        step(0, 10),
        operator(4, 9),
        launch("send_recv", "pp", 0),
        gloo("recv", 0, 5, MAIN),
    ]
    spent = split_step_time(events)
    assert (spent["send_recv_s"], spent["pp_comm_s"], spent["pipeline_bubble_s"]) == (5, 5, 4)
    assert spent["compute_s"] == 5  # a transfer runs on the thread that computes


def test_what_stages_share_by_collectives_is_no_bubble() -> None:
    """A norm over all ranks and a loss that is sent to all: each under its own kind, and pp."""
    events = [
        step(0, 20),
        launch("send_recv", "pp", 0),
        gloo("recv", 0, 2, MAIN),
        launch("all_reduce", "pp", 3),
        gloo("all_reduce", 3, 8),
        launch("broadcast", "pp", 9),
        gloo("broadcast", 9, 10),
        launch("send_recv", "cp", 11),
        gloo("send", 11, 15, MAIN),
    ]
    spent = split_step_time(events)
    assert spent["pipeline_bubble_s"] == 2
    assert (spent["pp_comm_s"], spent["cp_comm_s"], spent["exposed_comm_s"]) == (8, 4, 12)
    assert (spent["all_reduce_s"], spent["broadcast_s"], spent["send_recv_s"]) == (5, 1, 6)


def optimizer(start: float, end: float, *, on_device: bool = False) -> Event:
    return Event(
        name="scaling::optimizer", start=start, end=end, annotation=True, on_device=on_device
    )


def test_the_optimizers_seconds_are_a_part_of_the_others() -> None:
    events = [step(0, 10), operator(0, 6), operator(7, 9), optimizer(6, 9.5)]
    spent = split_step_time(events)
    assert spent["optimizer_s"] == 3.5
    without = split_step_time(events[:-1])
    assert without["optimizer_s"] is None  # the region was not annotated: unknown, not nothing
    assert {**spent, "optimizer_s": None} == without


def test_on_a_gpu_the_optimizer_works_where_its_kernels_do() -> None:
    """The host has launched it all by second 3; both streams are at it from 5 to 8."""
    events = [
        step(0, 10),
        kernel("gemm", 0, 5),
        kernel("multi_tensor_apply_kernel", 5, 8),
        optimizer(2, 3),
        optimizer(5, 7, on_device=True),
        optimizer(6, 8, on_device=True),
    ]
    assert split_step_time(events)["optimizer_s"] == 3
    assert split_step_time(events[:4])["optimizer_s"] is None


def test_a_window_whose_kernels_go_on_to_the_end_is_fit() -> None:
    assert unusable_reason([step(0, 10), kernel("gemm", 1, 9.5)], on_gpu=True) is None
    assert unusable_reason([step(0, 10), operator(0, 1)], on_gpu=False) is None


@pytest.mark.parametrize(
    ("events", "reason"),
    [
        ([], "holds no 'scaling.step'"),
        ([step(0, 10), operator(0, 9)], "no kernel"),
        ([step(0, 10), kernel("gemm", 1, 9.5), step(20, 30)], "no kernel in the last 100%"),
        ([step(0, 10), kernel("gemm", 1, 8)], "no kernel in the last 20%"),
    ],
)
def test_a_window_that_did_not_see_all_says_so(events: list[Event], reason: str) -> None:
    assert reason in str(unusable_reason(events, on_gpu=True))


def test_kernels_of_nccl_communicate_and_all_others_compute() -> None:
    spent = split_step_time(
        [
            step(0, 20),
            launch("all_reduce", "tp", 0, 0.3),
            annotated("nccl:all_reduce", 0.1, 0.2, 7),
            annotated("nccl:all_reduce", 2, 6, 7, on_device=True),
            launch("all_to_all", "cp", 1, 1.3),
            annotated("nccl:all_to_all", 1.1, 1.2, 8),
            annotated("nccl:all_to_all", 10, 13, 8, on_device=True),
            operator(0, 20),  # the host only launches
            Event(name=STEP, start=0, end=20, on_device=True, annotation=True),
            kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 2, 6),
            kernel("ncclDevKernel_SendRecv", 10, 13),
            kernel("sm90_xmma_gemm_bf16", 5, 9),
            kernel("Memcpy DtoD", 14, 15),
        ]
    )
    assert (spent["compute_s"], spent["comm_s"]) == (5, 7)
    assert (spent["exposed_comm_s"], spent["idle_s"]) == (6, 9)
    assert (spent["all_reduce_s"], spent["tp_comm_s"]) == (4, 4)
    assert (spent["all_to_all_s"], spent["send_recv_s"], spent["cp_comm_s"]) == (3, 0, 3)


def test_an_optimizer_on_the_host_may_end_a_step() -> None:
    """Its kernels end at 4 of 10 seconds; the host steps until 9.7."""
    events = [step(0, 10), kernel("gemm", 1, 4)]
    on_host = annotated(OPTIMIZER, 4.5, 9.7, 5)
    assert "no kernel in the last 60%" in str(unusable_reason(events, on_gpu=True))
    assert unusable_reason([*events, on_host], on_gpu=True) is None


def test_a_kernel_whose_call_is_not_in_the_trace_has_a_kind_but_no_axis() -> None:
    spent = split_step_time(
        [step(0, 4), kernel("ncclDevKernel_ReduceScatter_Sum_f32_RING_LL", 1, 3)]
    )
    assert (spent["reduce_scatter_s"], spent["comm_s"]) == (2, 2)
    assert {spent[f"{axis}_comm_s"] for axis in ("tp", "cp", "dp", "pp")} == {None}
