"""Reasons why a run says nothing about its point, which leaves no row and stays to be measured."""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from scaling.record.files import CannotWrite

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class NotMeasured(Exception):
    """The point is not to blame; the message says what is.

    `exit_code` is that of the measuring command, so that its caller can try another host.
    """

    exit_code = 1


class NodeLost(NotMeasured):
    """A node of the allocation failed."""


class KilledFromOutside(NotMeasured):
    """The ranks or this process were ended: preemption, `scancel --signal=TERM`, a person."""

    exit_code = os.EX_TEMPFAIL


class NoDevices(NotMeasured):
    """This host lacks the devices that the point needs; another host may have them."""

    exit_code = os.EX_TEMPFAIL + 1


class NotWritten(NotMeasured):
    """A file could not be written, for example because the disk is full."""

    exit_code = os.EX_IOERR


@contextlib.contextmanager
def file_errors_as_not_written(path: Path) -> Iterator[None]:
    """Turn errors of the system into `NotWritten`; `path` is named where they name no file."""
    try:
        yield
    except CannotWrite as error:
        raise NotWritten(str(error)) from error
    except OSError as error:
        raise NotWritten(f"{error.filename or path}: {error.strerror or error}") from error


@contextlib.contextmanager
def exits_on_signals() -> Iterator[None]:
    """Turn SIGINT, SIGTERM and SIGHUP into SystemExit(75), so that `finally` blocks run.

    75, EX_TEMPFAIL, is the exit code of `KilledFromOutside`: the point is measured again whether
    its ranks or their launcher were ended. Ignored signals stay ignored (nohup). Outside the main
    thread Python delivers no signals, and nothing is changed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, _: FrameType | None) -> None:
        for other in before:  # a second Ctrl-C must not interrupt the clean-up
            signal.signal(other, signal.SIG_IGN)
        name = signal.Signals(number).name
        words = f"ended by {name} before its ranks had ended; the next run repeats it\n"
        os.write(2, words.encode())  # unlike print, safe in a handler
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


def ignore_signals() -> None:
    """Ignore the same signals from now on, once only what was measured remains to be written.

    Ended then, the command would count as failed, and its measurement would be made again.
    `exits_on_signals` puts earlier handlers back. Outside the main thread nothing is changed.
    """
    if threading.current_thread() is threading.main_thread():
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)
