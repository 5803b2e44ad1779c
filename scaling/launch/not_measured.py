"""Reasons why a run says nothing about its point, which leaves no row and stays to be measured."""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

from scaling.errors import CannotWrite

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_told: list[int] = []  # of these, those that were noted


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
def noting_signals() -> Iterator[None]:
    """Note SIGINT, SIGTERM and SIGHUP for `end_if_told`, so that none cuts a step in two.

    Otherwise a process that has just started, or a file that has just got its name, would stay.
    Ignored signals stay ignored (nohup). Outside the main thread nothing is changed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    heeded = [number for number in _SIGNALS if before[number] is not signal.SIG_IGN]
    try:
        for number in heeded:
            signal.signal(number, lambda number, _: _told.append(number))
        yield
    finally:
        for number in heeded:
            signal.signal(number, before[number])
        _told.clear()


def end_if_told() -> None:
    """Raise KilledFromOutside if a signal was noted; to be called where one may wait for long.

    The point is measured again whether its ranks or their launcher were ended. A second Ctrl-C does
    not interrupt the clean-up.
    """
    if _told:
        ignore_signals()
        name = signal.Signals(_told[0]).name
        _told.clear()
        raise KilledFromOutside(
            f"ended by {name} before its ranks had ended; the next run repeats it"
        )


def ignore_signals() -> None:
    """Ignore the same signals from now on, once what was measured is written.

    Ended then, the command would count as failed, and its measurement would be made again.
    Outside the main thread nothing is changed.
    """
    if threading.current_thread() is threading.main_thread():
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)
