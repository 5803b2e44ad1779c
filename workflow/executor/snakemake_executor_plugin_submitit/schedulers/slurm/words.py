"""The meaning of Slurm's messages: states of jobs, and sbatch's refusals."""

import re

from ...ownership import user_name
from ..base import Kind, State

# Final states; in any other state the job may still run.
_ENDED = {
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "LAUNCH_FAILED", "NODE_FAIL",
    "OUT_OF_MEMORY", "PREEMPTED", "RECONFIG_FAIL", "REVOKED", "TIMEOUT",
}  # fmt: skip

# Reasons for which a job may wait for ever unless somebody does something.
_STUCK = re.compile(
    "held|Held|^QOS|^Assoc|(?<!^JobArrayTask)Limit$|^Partition(Down|Inactive|Config)|BadConstraints|Not(Allowed|Avail)"
    "|Invalid(Account|QOS)|ReservationDeleted|NeverSatisfied|^Nodes required for job are DOWN"
)

# Reasons of Slurm's own to hold a job: a prolog failed, its node did not start it, or not for long.
_GIVEN_UP = re.compile("^(launch.failed.requeued.held|JobHoldMaxRequeue)$")

# Patterns in sbatch's messages; the first match counts, and no match means "unknown".
_MEANINGS: tuple[tuple[Kind, str], ...] = (
    (
        "later",
        "unable to contact|timed out|slurm_receive_msg|connection refused|zero bytes"
        "|connect failure|standby mode|submit job limit|SubmitJob|temporarily un|try again",
    ),
    (
        "refused",
        # one job asks for more than any may have: QOSMaxWallDurationPerJobLimit and its like
        r"(Assoc|QOS)\w*(Wall|Time|CPU|Node|GRES|TRES|Mem|Lic|Billing|BB)"
        r"|invalid (?!authentication|credential|user id|job credential|protocol|entry)"
        "|unrecognized option|not permitted|permission denied|access denied|specification invalid"
        "|more processors requested|node configuration is not available|nodes not in this partition"
        "|time limit is invalid|reservation is invalid|no partition specified|not supported"
        "|can not be satisfied|insufficient GRES|unsupported",
    ),
)


def state_of(word: str, reason: str = "") -> State:
    """The state for a word of Slurm's; accounting's reason may be `CANCELLED by 1000`."""
    text, given_up = word, _GIVEN_UP.search(reason) is not None
    if given_up:
        text = f"held: {reason}"
    elif word == "OUT_OF_MEMORY":
        text += ": the job's memory limit (--mem) killed it; ask for more mem_mb"
    elif (uid := reason.partition("CANCELLED by ")[2]).isdigit():
        text += f" by {user_name(int(uid))}"
    return State(
        text=text,
        reason=reason,
        live=word not in _ENDED,
        waits=word in ("PENDING", "REQUEUED", "REQUEUE_HOLD"),
        failed=word == "FAILED",
        preempted=word == "PREEMPTED",
        stuck=_STUCK.search(reason) is not None,
        given_up=given_up,
    )


def kind_of(message: str) -> Kind:
    """The meaning of sbatch's message for the request."""
    for kind, words in _MEANINGS:
        if re.search(words, message, re.IGNORECASE):
            return kind
    return "unknown"


def minutes_of(limit: str) -> int | None:
    """The minutes of a time limit such as `1-00:00:00` or `30:00`; None if there is no limit."""
    days, _, rest = limit.strip().rpartition("-")
    parts = rest.split(":")
    if not all(part.isdigit() for part in [days or "0", *parts]):
        return None
    hours, minutes, _ = map(int, ["0", *parts][-3:])
    return 1440 * int(days or 0) + 60 * hours + minutes


def sentence(text: str) -> str:
    """Sbatch's message on one line, without its name on each."""
    lines = [line.removeprefix("sbatch: ").removeprefix("error: ") for line in text.splitlines()]
    return "; ".join(line.strip() for line in lines if line.strip()) or "nothing"
