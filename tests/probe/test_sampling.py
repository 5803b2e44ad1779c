"""How often a probe runs, on a machine whose clock is made up."""

from scaling.probe.devices import time_samples


class Machine:
    """A run takes `seconds`; the clock moves only while the device works."""

    def __init__(self, seconds):
        self.seconds, self.now, self.queued, self.runs = seconds, 0.0, 0, 0

    def run(self):
        self.queued += 1
        self.runs += 1

    def drain(self):
        self.now += self.queued * self.seconds
        self.queued = 0


def sampled(seconds, budget_s, **more):
    machine = Machine(seconds)
    taken = time_samples(
        machine.run, drain=machine.drain, budget_s=budget_s, clock=lambda: machine.now, **more
    )
    return taken, machine


def test_something_short_is_run_so_often_that_the_clock_can_see_it():
    taken, machine = sampled(1e-5, 0.05)
    assert len(taken) == 20
    assert machine.runs == 2 + 20 * 200  # 2 ms a sample
    assert all(abs(one / 1e-5 - 1) < 1e-6 for one in taken)


def test_all_ranks_run_as_often_as_the_slowest_can():
    _, machine = sampled(1e-5, 0.05, agree=lambda own: max(own, 1e-3))
    assert machine.runs == 2 + 20 * 2


def test_a_device_is_warm_before_it_is_timed():
    """A second of runs of 10 ms, beside those that are counted and the two before."""
    taken, machine = sampled(0.01, 0.05, warm_s=1.0)
    assert len(taken) == 5
    assert abs(machine.runs - (2 + 100 + 5)) <= 1
