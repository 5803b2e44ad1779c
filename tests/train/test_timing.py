from scaling.train.measure.timing import HostStopwatch, time_steps


class Log:
    """A stopwatch and a training run that only write down who was called."""

    name = "log"

    def __init__(self) -> None:
        self.said: list[str] = []

    def start(self) -> None:
        self.said.append("start")

    def stop(self) -> float:
        self.said.append("stop")
        return 1.0


def test_the_watch_runs_around_the_step_and_nothing_else() -> None:
    log = Log()
    times = time_steps(
        steps=2,
        prepare=lambda step: log.said.append(f"data {step}"),
        align=lambda: log.said.append("align"),
        step=lambda _: log.said.append("step"),
        after=lambda step: log.said.append(f"loss {step}"),
        stopwatch=log,
    )
    once = ["data {}", "align", "start", "step", "stop", "loss {}"]
    assert log.said == [line.format(step) for step in (0, 1) for line in once]
    assert times == [1.0, 1.0]


def test_the_host_watch_subtracts_two_readings() -> None:
    readings = iter([10.0, 12.5])
    watch = HostStopwatch(clock=lambda: next(readings))
    watch.start()
    assert watch.stop() == 2.5
