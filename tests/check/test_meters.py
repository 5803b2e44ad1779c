"""A meter and a clock that are made up: the device draws what the test says."""

import pytest

from scaling.check.meters import energy_line
from scaling.train.measure.power import SAMPLED, NvmlMeter, Sample


class Device(NvmlMeter):
    """Draws 300 W, while its clock moves with its work; its counter counts `counted` of that."""

    def __init__(self, counted: float | None, power: float | None = 300.0) -> None:
        self.now, self.counted, self.power = 0.0, counted, power

    def clock(self) -> float:
        return self.now

    def work(self) -> None:
        self.now += 0.01

    def energy_j(self) -> float | None:
        return None if self.counted is None else self.counted * 300.0 * self.now

    def sample(self) -> Sample:
        return dict.fromkeys(SAMPLED) | {"power_w": self.power}


@pytest.mark.parametrize(
    ("counted", "state"), [(1.0, "pass"), (1.04, "pass"), (0.9, "fail"), (2.0, "fail")]
)
def test_a_counter_is_held_to_power_over_time(counted: float, state: str) -> None:
    device = Device(counted)
    line = energy_line(device, device.work, clock=device.clock)
    assert line.state == state
    assert line.value == pytest.approx(abs(counted - 1))


@pytest.mark.parametrize("device", [Device(None), Device(1.0, power=None)])
def test_a_meter_that_cannot_say_is_not_here(device: Device) -> None:
    assert energy_line(device, device.work, clock=device.clock).state == "not here"


def test_a_cpu_has_no_meter() -> None:
    assert energy_line(None, lambda: None).state == "not here"
