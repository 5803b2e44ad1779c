"""SIGINT, SIGTERM and SIGHUP end the launcher in order: its ranks first, and without a row."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

from scaling.launch.unsettled import KilledFromOutside

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def exits_on_signals() -> Iterator[None]:
    """Turn these signals into SystemExit(75), EX_TEMPFAIL, so that `finally` runs.

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
