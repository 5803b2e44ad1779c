"""Run Snakemake for a study and tell how far it is until it is done."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.text import Text

from scaling.errors import printable
from scaling.launch.fork_server.client import local_fork_server
from scaling.launch.start.slurm import queued
from scaling.record import row_files
from scaling.run import dry_run, plan_writer, planning, stop
from scaling.run.progress import Progress, Watcher, duration, watcher_of
from scaling.run.status import use_of_allocations
from scaling.study import plan_file
from scaling.study.paths import LOGS, LogPaths, StudyPaths, local_or_shipped
from scaling.study.plan_file import PlanFile

_ASK_EVERY_S = 30.0  # Slurm, why jobs wait
PLAIN_LINE_EVERY_S = 15.0  # where nobody watches a terminal, the line goes into a log


def run_study(
    study: str,
    options: list[str],
    results: Path,
    *,
    mode: str | None = None,
    cluster: str | None = None,
) -> int:
    """Run what is missing of `study`; snakemake's exit code.

    Snakemake's own words go to logs/<study>/snakemake.log, and to the terminal with `--dry-run`
    or if it fails. `options` are its own, `mode` and `cluster` stand instead of the study's.

    Raises:
        InputError: the study is wrong.
    """
    console = Console(highlight=False)
    planned = plan_writer.plan_study(study, mode=mode, cluster=cluster)
    folder = plan_writer.write_plan(planned, results)
    loaded, plan = planned.study, planned.plan
    wanted = planning.to_measure(loaded, plan)
    watcher = watcher_of(loaded, wanted, folder)
    is_dry = bool(dry_run.DRY_RUN & set(options))
    shown = dry_run.quietly(options) if is_dry else options
    command = _command(loaded.path, shown, {"mode": mode, "cluster": cluster})
    if is_dry:
        return _dry_run(command, plan_file.read_plan(folder, planned.made_from), options, watcher)
    stop.refuse_a_second(loaded.name)
    stop.clear_stale_lock(Path.cwd(), command, console)
    if not _names_profile(options):  # on a cluster, running jobs are the executor's to find again
        _wait_for_orphans(watcher, console)
    for unusable in row_files.set_unreadable_aside(StudyPaths(folder).rows):
        console.print(f"Set aside, its point runs again: {unusable}")
    before = watcher.look()
    report = StudyPaths(folder).report
    had_report = report.stat().st_mtime_ns if report.exists() else None
    log = LogPaths(LOGS / loaded.name).snakemake
    log.parent.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    # on a cluster every allocation has its own
    here = not _names_profile(options) and before.left > 0
    host = local_fork_server(plan.points[0] if here else None, log.parent)
    with log.open("a", encoding="utf-8") as sink, host as environment:
        process = subprocess.Popen(
            command, stdout=sink, stderr=subprocess.STDOUT, env={**os.environ, **environment}
        )
        code, told_to_end = _wait(process, watcher, console, started)
    code = 128 - code if code < 0 else code  # as a shell says which signal ended it
    after = watcher.look()
    if code and told_to_end:  # snakemake may have died of it with a traceback, which says nothing
        console.print(f"Stopped: {after.line()}. The same command goes on; what was said: {log}")
        return code
    if code:
        tail = log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:]
        console.print("\n".join(printable(line) for line in tail))
        console.print(f"snakemake ended with exit code {code}; all it said: {log}")
        return code
    unchanged = report.stat().st_mtime_ns == had_report
    if before.finished and unchanged:
        done = f"all {after.total} points are measured" if after.total else "all is predicted"
        console.print(f"Nothing to do: {done}.")
    else:
        took = duration(time.monotonic() - started)
        console.print(f"Finished in {took}: {after.line()}")
        if (use := use_of_allocations(watcher.paths)) is not None:
            console.print(use)
    console.print(f"The report: {report}")
    return 0


def _dry_run(
    command: list[str], plan: PlanFile | None, options: list[str], watcher: Watcher
) -> int:
    watcher.look()
    code = subprocess.run(command, check=False).returncode
    if code == 0 and plan is not None:
        missing = [point.point_id for point in watcher.missing()]
        wanted = {point.point_id: planning.allocation(point) for point in watcher.points}
        for line in dry_run.allocations(wanted, missing, options):
            print(line)  # noqa: T201 (what a dry run says)
    return code


def _wait_for_orphans(watcher: Watcher, console: Console) -> None:
    """Let points that a killed run left behind end: they are not to be measured twice.

    Two points at once on one machine would measure each other. Each ends by its own time limit.
    """
    seen = watcher.look()
    if seen.running:
        console.print(f"Waiting for {seen.running} running point(s) of an earlier run.")
    while seen.running:
        time.sleep(0.5)
        seen = watcher.look()


def _names_profile(options: list[str]) -> bool:
    return any(option.split("=")[0] == "--profile" for option in options)


def _command(study: Path, options: list[str], chosen: Mapping[str, str | None]) -> list[str]:
    local = ["--profile", str(local_or_shipped("config/profiles/local"))]
    profile = [] if _names_profile(options) else local
    settings = [f"{key}={value}" for key, value in chosen.items() if value is not None]
    python = [sys.executable, "-m", "snakemake"]
    return [*python, *profile, *options, "--config", f"study={study}", *settings]


def _wait(
    process: subprocess.Popen[bytes], watcher: Watcher, console: Console, started: float
) -> tuple[int, bool]:
    """Show the line until snakemake ends; its exit code, and whether it was told to end.

    Ctrl-C reaches snakemake too; it ends by itself. SIGTERM is handed on: snakemake starts nothing
    more, and what runs comes to its end.
    """
    told_to_end = False

    def hand_on(*_: object) -> None:
        nonlocal told_to_end
        told_to_end = True
        process.terminate()

    before = signal.signal(signal.SIGTERM, hand_on)
    next_plain = time.monotonic() + PLAIN_LINE_EVERY_S
    next_ask, waiting = 0.0, ""
    last = ""
    with contextlib.ExitStack() as at_the_end:
        at_the_end.callback(signal.signal, signal.SIGTERM, before)
        live = at_the_end.enter_context(Live(console=console, refresh_per_second=4, transient=True))
        while True:
            try:
                return process.wait(timeout=1.0), told_to_end
            except subprocess.TimeoutExpired:
                progress = watcher.look()
            except KeyboardInterrupt:
                told_to_end = True
                console.print("Stopping: what is measured is kept.")
                os.kill(process.pid, signal.SIGINT)
                continue
            if time.monotonic() >= next_ask:
                waiting = _waiting()
                next_ask = time.monotonic() + _ASK_EVERY_S
            line = _line(progress, time.monotonic() - started) + waiting
            live.update(Text(line))
            timeless = progress.line() + waiting
            if not console.is_terminal and time.monotonic() >= next_plain and timeless != last:
                console.print(line, soft_wrap=True)
                next_plain, last = time.monotonic() + PLAIN_LINE_EVERY_S, timeless


def _waiting() -> str:
    """The job of this folder that waits foremost, and how many more do; empty if none waits."""
    waiting = [(one.position, one) for one in queued(Path.cwd()) if one.position is not None]
    if not waiting:
        return ""
    _, foremost = min(waiting, key=lambda placed: placed[0])
    more = f", and {len(waiting) - 1} more" if len(waiting) > 1 else ""
    return f" · waits: {foremost.line}{more}"


def _line(progress: Progress, elapsed: float) -> str:
    width = 24
    missing = progress.left + progress.running
    filled = round(width * (1 - missing / progress.total)) if progress.total else 0
    return f"{'━' * filled}{'╌' * (width - filled)} {progress.line()} · {duration(elapsed)} so far"
