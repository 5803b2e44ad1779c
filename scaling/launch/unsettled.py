"""Runs that say nothing of their point: no row is left, and the point is still wanted."""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Unsettled(Exception):
    """The point is not to blame; the text says what is.

    `exit_code` tells the one who started the measuring command, which may have other hosts.
    """

    exit_code = 1


class NodeLost(Unsettled):
    """A node of the allocation failed."""


class KilledFromOutside(Unsettled):
    """Somebody ended the ranks, or this process: preemption, `scancel --signal=TERM`, a person."""

    exit_code = os.EX_TEMPFAIL


class NoDevices(Unsettled):
    """This host does not show the devices that the point needs; another one may."""

    exit_code = os.EX_TEMPFAIL + 1


class NotWritten(Unsettled):
    """A file could not be written, as on a disk that is full."""

    exit_code = os.EX_IOERR


@contextlib.contextmanager
def exits_on_signals() -> Iterator[None]:
    """SIGINT, SIGTERM and SIGHUP become SystemExit(75), EX_TEMPFAIL, so that `finally` runs.

    It is the code of `KilledFromOutside`: whether the ranks are ended or who started them, the
    point is taken up again. A signal that is ignored stays so (nohup). Outside the main thread
    Python delivers none, and nothing is changed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(_: int, __: FrameType | None) -> None:
        for other in before:  # impatience must not break off the clean-up
            signal.signal(other, signal.SIG_IGN)
        raise SystemExit(KilledFromOutside.exit_code)

    before = {
        number: handler
        for number in _SIGNALS
        if (handler := signal.getsignal(number)) is not signal.SIG_IGN
    }
    for number in before:
        signal.signal(number, leave)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
