"""Runs that say nothing of their point: no row is left, and the point is still wanted."""

import os


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
