"""The tests work however they are started: in the background or under nohup."""

import signal
import subprocess
import sys

import pytest

from tests.conftest import heed_signals

IGNORED = (
    "import signal as s; print(*(n for n in (s.SIGINT, s.SIGHUP) if s.getsignal(n) is s.SIG_IGN))"
)


@pytest.fixture
def started_in_the_background():
    """Ignore SIGINT and SIGHUP, as a background job under nohup does."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGHUP)}
    for number in before:
        signal.signal(number, signal.SIG_IGN)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def ignored_by_a_child():
    return subprocess.check_output([sys.executable, "-c", IGNORED], text=True).split()


@pytest.mark.usefixtures("started_in_the_background")
def test_children_of_a_test_heed_signals_that_its_parent_ignored():
    assert ignored_by_a_child() == ["2", "1"]
    heed_signals()
    assert ignored_by_a_child() == []


@pytest.mark.usefixtures("started_in_the_background")
def test_a_hangup_that_nohup_keeps_away_does_not_end_the_tests():
    heed_signals()
    signal.raise_signal(signal.SIGHUP)
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
