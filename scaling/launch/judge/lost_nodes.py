"""Whether Slurm has lost a node of this allocation: then no point is to blame."""

import subprocess
from collections.abc import Mapping

_ASK_LIMIT_S = 30.0
# Slurm's words for a node that runs nothing any more; `*` after a word: it does not answer
_LOST = ("down", "fail", "error", "unk")


def lost_nodes(environment: Mapping[str, str], *, silent: bool) -> list[str]:
    """Names of this allocation's nodes that Slurm calls lost, each with its word for it.

    Empty outside an allocation, and where Slurm does not answer: then nothing is known.

    Args:
        environment: of the allocation.
        silent: count a node that does not answer: minutes may pass until Slurm calls it down.
    """
    nodes = environment.get("SLURM_JOB_NODELIST")
    if not nodes:
        return []
    ask = ["sinfo", "--noheader", "--Node", f"--nodes={nodes}", "--format=%N %t"]
    try:
        said = subprocess.run(
            ask, capture_output=True, text=True, timeout=_ASK_LIMIT_S, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return []
    # a node is listed once for each partition
    states = dict(line.split() for line in said.splitlines() if len(line.split()) == 2)
    return [
        f"{name} ({state})"
        for name, state in sorted(states.items())
        if state.startswith(_LOST) or (silent and state.endswith("*"))
    ]
