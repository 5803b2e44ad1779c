"""What Slurm's words mean: of the state of a job, and of sbatch's refusals."""

import re

from ..base import Kind, State

# final states; a word that is not here means that the job may still run
_ENDED = {
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "LAUNCH_FAILED", "NODE_FAIL",
    "OUT_OF_MEMORY", "PREEMPTED", "RECONFIG_FAIL", "REVOKED", "TIMEOUT",
}  # fmt: skip

# What sbatch says; the first kind with a word in it counts. What is in none of them is "unknown".
_MEANINGS: tuple[tuple[Kind, str], ...] = (
    (
        "away",
        "unable to contact|timed out|slurm_receive_msg|connection refused|zero bytes"
        "|connect failure|standby mode",
    ),
    ("busy", "submit job limit|SubmitJob|temporarily un|try again"),
    (
        "refused",
        # one job asks for more than any may have: QOSMaxWallDurationPerJobLimit and its like
        r"(Assoc|QOS)\w*(Wall|Time|CPU|Node|GRES|TRES|Mem|Lic|Billing|BB)"
        r"|invalid (?!authentication|credential|user id|job credential|protocol)"
        "|unrecognized option|not permitted|permission denied|access denied|specification invalid"
        "|more processors requested|node configuration is not available|nodes not in this partition"
        "|time limit is invalid|reservation is invalid|no partition specified|not supported"
        "|can not be satisfied|insufficient GRES|unsupported",
    ),
)


def state_of(word: str, reason: str = "") -> State:
    """What a word of Slurm's says."""
    return State(
        word,
        reason,
        live=word not in _ENDED,
        failed=word == "FAILED",
        preempted=word == "PREEMPTED",
        stuck="held" in reason.lower() or reason.endswith("Limit"),
    )


def kind_of(message: str) -> Kind:
    """What becomes of a request to which sbatch says this."""
    for kind, words in _MEANINGS:
        if re.search(words, message, re.IGNORECASE):
            return kind
    return "unknown"


def sentence(text: str) -> str:
    """What sbatch said, on one line and without its own name on each."""
    lines = [line.removeprefix("sbatch: ").removeprefix("error: ") for line in text.splitlines()]
    return "; ".join(line.strip() for line in lines if line.strip()) or "nothing"
