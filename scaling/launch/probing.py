"""A probe from its plan to its rows, whatever happens to its ranks."""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scaling.launch.judge.watch import Limits
from scaling.launch.point_files import read_probe_plan
from scaling.launch.probe_rows import rows_of
from scaling.launch.ranks import rank_files, run_ranks
from scaling.launch.start.choose import starter
from scaling.launch.start.environment import rank_environment
from scaling.launch.start.starter import Launch, Starter
from scaling.launch.unsettled import exits_on_signals
from scaling.probe.plan import ProbePlan
from scaling.record.files import table_of, write_table, write_text
from scaling.record.probe_row import Probe
from scaling.record.rank_files import ProbeRecords
from scaling.study.paths import hosts_beside, logs_beside
from scaling.study.time_limits import HANG_AFTER_S

RANK_COMMAND = (sys.executable, "-m", "scaling.probe")
STARTUP_LIMIT_S = 300.0  # imports on a shared file system, connections of thousands of ranks


def probe(
    plan_path: Path,
    out: Path,
    *,
    logs: Path | None = None,
    rank_command: Sequence[str] = RANK_COMMAND,
    start: Starter | None = None,
    hang_after_s: float = HANG_AFTER_S,
) -> list[Probe]:
    """Run a probe's ranks; write its rows, and hosts.json beside them.

    Args:
        plan_path: probe.json, as `scaling plan` wrote it.
        out: the Parquet file to write.
        logs: folder of the ranks' logs; by default <name>.logs/ beside `out`.
        rank_command: the program of one rank; the plan and a folder for its files are appended.
        start: starts the ranks; by default srun in a Slurm allocation, processes elsewhere.
        hang_after_s: seconds without any rank getting further that count as a hang.

    Returns:
        The rows that were written.

    Raises:
        InputError: there is no such plan, or the file is none.
        KilledFromOutside: somebody ended the ranks; nothing was written.
        SystemExit: SIGINT, SIGTERM or SIGHUP came; no rank runs and nothing was written.
    """
    plan = read_probe_plan(plan_path)
    out = out.absolute()
    logs = logs or logs_beside(out)
    limits = Limits(
        limit_s=plan.time_limit_s + STARTUP_LIMIT_S,
        hang_after_s=hang_after_s,
        start_hang_after_s=hang_after_s,
    )
    with exits_on_signals(), rank_files(logs) as files:
        command = [*rank_command, str(plan_path.absolute()), str(files.directory)]
        launch = Launch(command, plan, rank_environment(plan, os.environ), logs)
        run = run_ranks(launch, files, start or starter(os.environ), limits)
        left = files.records()
    rows = rows_of(plan, run, left)
    write_text(hosts_beside(out), json.dumps(hosts_of(plan, left), indent=1) + "\n")
    write_table(out, table_of(rows, Probe))
    return rows


def hosts_of(plan: ProbePlan, left: Mapping[int, ProbeRecords]) -> dict[str, dict[str, Any]]:
    """Facts by host; its devices in a list."""
    hosts: dict[str, dict[str, Any]] = {}
    for rank in sorted(left):
        facts = dict(left[rank].facts)
        own = {name: facts.pop(name) for name in ("device", "gpu_name", "memory_bytes")}
        host = hosts.setdefault(facts.pop("host"), {"devices": []})
        host["devices"].append(own | {"rank": rank})
        facts.pop("local_rank")
        host |= facts
    return hosts
