"""Run Snakemake for a study, and show its progress until it ends."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import typing
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.text import Text

from scaling.errors import InputError, first_few, printable
from scaling.launch.start.forked import local_fork_server
from scaling.launch.start.slurm import Queue
from scaling.record.row import Outcome
from scaling.run import plan_writer, planning, retry, stop
from scaling.run.status import Progress, Watcher, duration, watch_study
from scaling.study.inputs import local_or_shipped
from scaling.study.paths import LOGS, LogPaths, check_writable

_ASK_SLURM_EVERY_S = 30.0  # why jobs wait
_SHOWN_LINES = 15  # of a run that failed
_TOLD_TO_END = "Will exit after finishing currently running jobs"  # snakemake, after SIGTERM
_LOG_OF_FAILED = re.compile(r"^ +log: (.+) \(check log file\(s\) for error details\)$", re.M)
PLAIN_LINE_EVERY_S = 15.0  # without a terminal, as each line goes into a log


def run_study(
    study: str,
    options: list[str],
    *,
    mode: str | None = None,
    cluster: str | None = None,
    notify: str | None = None,
    implied: bool = True,
) -> int:
    """Run what is missing of `study`; returns snakemake's exit code.

    `options` are for snakemake; `mode` and `cluster` override the study's. Without `implied`,
    points start that a smaller micro-batch's lack of memory rules out. Snakemake's output goes
    to logs/<study>/snakemake.log, and to the terminal with `--dry-run` or if it fails. The shell
    command `notify` is run once at the end.
    """
    for option in options:
        if option.partition("=")[0] in ("--config", "-C"):  # Snakemake would heed one of them only
            raise InputError(
                f"{option}: names the study already; give --mode and --cluster before the `--`"
            )
    console = Console(highlight=False)
    planned = planning.plan_study(study, mode=mode, cluster=cluster)
    plan_writer.write_plan(planned)
    loaded, points = planned.study, planned.plan.points
    watcher = watch_study(loaded, points, planned.folder)
    overrides = {"mode": mode, "cluster": cluster, "implied": None if implied else "false"}
    command = _command(loaded.path, options, overrides)
    if any(re.match("(--dry-?run|-n[a-zA-Z]*)$", word) for word in options):  # `-np` is `-n -p`
        return subprocess.run(command, check=False).returncode
    stop.refuse_second_run(study)
    stop.clear_stale_lock(Path.cwd(), console)
    on_cluster = _names_profile(options)
    if not on_cluster:  # on a cluster the executor finds running jobs again
        _wait_for_orphans(watcher, console)
    moved = retry.set_unreadable_aside(watcher.paths.folder)
    for line in first_few([f"Set aside, its point runs again: {unusable}" for unusable in moved]):
        console.print(line, markup=False)
    before = watcher.look()
    report = watcher.paths.report
    report_time_ns = _time_ns(report)
    log = LogPaths(LOGS / loaded.name).snakemake
    log.parent.mkdir(parents=True, exist_ok=True)
    check_writable(log)  # without it snakemake would end in a traceback
    started = time.monotonic()
    # on a cluster every allocation has its own fork servers
    measures_here = not on_cluster and before.left > 0
    server = local_fork_server(points[0] if measures_here else None, log.parent)
    with log.open("a", encoding="utf-8") as sink, server as environment:
        earlier_bytes = sink.tell()
        own = {**os.environ, **environment}
        code, told = _run(command, own, sink, watcher, console, started)
    after = watcher.look()
    if notify is not None:
        subprocess.run(
            notify, shell=True, check=False, env=_end_variables(loaded.name, code, after, report)
        )
    if code:
        said = log.read_bytes()[earlier_bytes:].decode(errors="replace")
        # an interrupted snakemake may end with a traceback, which means nothing
        if code < 0 or told or _TOLD_TO_END in said:
            killed = code < 0 and not told
            how = f"snakemake was ended by signal {-code}" if killed else "Stopped"
            console.print(f"{how}: {after.line()}. The same command continues. Full log: {log}")
        else:
            stop.refuse_second_run(study)  # two were started in one instant
            _print_failure(console, code, log, said)
        ended_by = told or -code
        return 128 + ended_by if ended_by > 0 else code  # as a shell reports a signal
    if before.finished and report_time_ns is not None and _time_ns(report) == report_time_ns:
        done = f"all {after.total} points are measured" if after.total else "all is predicted"
        console.print(f"Nothing to do: {done}.")
    else:
        console.print(f"Finished in {duration(time.monotonic() - started)}: {after.line()}")
    if report.exists():  # options such as --until may end before it
        console.print(f"The report: {report}")
    return 0


def _end_variables(study: str, code: int, after: Progress, report: Path) -> dict[str, str]:
    """The environment of a command that tells of a run's end: counts of points by outcome."""
    counts = {**dict.fromkeys(typing.get_args(Outcome), 0), **after.failed, "ok": after.done}
    facts = {
        "study": study,
        "exit_code": code,
        "left": after.left + after.running,
        "line": after.line(),
        "report": report.absolute() if report.exists() else "",
        **counts,
    }
    return {**os.environ, **{f"SCALING_{name.upper()}": str(fact) for name, fact in facts.items()}}


def _time_ns(file: Path) -> int | None:
    return file.stat().st_mtime_ns if file.exists() else None


def _print_failure(console: Console, code: int, log: Path, said: str) -> None:
    """Show the last words of the jobs that failed or, if none did, of snakemake.

    `said` is what snakemake added to its log in this run.
    """
    if not (lines := _last_words(said)):
        check_writable(log)
        lines = said.splitlines()[-_SHOWN_LINES:]
    console.print("\n".join(map(printable, lines)), markup=False, soft_wrap=True)
    console.print(
        f"snakemake ended with exit code {code}; when that is mended, the same command continues; "
        f"full log: {log}"
    )


def _last_words(text: str) -> list[str]:
    """For each job that snakemake's output says has failed, its log and the last line of that."""
    words = []
    for log in dict.fromkeys(_LOG_OF_FAILED.findall(text)):
        with contextlib.suppress(OSError):  # it failed before it wrote any
            lines = Path(log).read_text(encoding="utf-8", errors="replace").split("\n")
            last = next((line for line in reversed(lines) if line.strip()), None)
            words.append(f"{log}: {last or 'is empty, as when a job is killed'}")
    return first_few(words)


def _wait_for_orphans(watcher: Watcher, console: Console) -> None:
    """Wait for points that a killed run left running, so that they are not measured twice.

    Two at once on one machine would disturb each other. Each ends by its own time limit.
    """
    if running := watcher.look().running:
        console.print(f"Waiting for {running} running point(s) of an earlier run.")
    while watcher.look().running:
        time.sleep(0.5)


def _names_profile(options: list[str]) -> bool:
    return any(option.split("=")[0] == "--profile" for option in options)


def _command(study: Path, options: list[str], overrides: Mapping[str, str | None]) -> list[str]:
    local = ["--profile", str(local_or_shipped("config/profiles/local"))]
    profile = [] if _names_profile(options) else local
    stated = {"study": str(study), **overrides}
    # quoted, as Snakemake reads values as YAML: `a #b` would be `a`; it takes outermost quotes off
    config = [
        f"{key}= {json.dumps(value, ensure_ascii=False)} "
        for key, value in stated.items()
        if value is not None
    ]
    return [sys.executable, "-m", "snakemake", *profile, *options, "--config", *config]


def _run(
    command: list[str],
    environment: Mapping[str, str],
    sink: typing.IO[str],
    watcher: Watcher,
    console: Console,
    started: float,
) -> tuple[int, int]:
    """Run snakemake and show its progress; its exit code, and the signal that told it to end, or 0.

    Signals are passed on, whenever they come: after SIGINT (Ctrl-C) snakemake ends, after SIGTERM
    it starts nothing more and lets running jobs finish.
    """
    process: subprocess.Popen[bytes] | None = None
    told: list[int] = []  # signals
    unsent: list[int] = []  # of them, for snakemake to start

    def note(number: int, _: object) -> None:
        told.append(number)
        unsent.append(number)
        pass_on()

    def pass_on() -> None:
        while process is not None and unsent:
            process.send_signal(unsent.pop(0))

    next_print = time.monotonic() + PLAIN_LINE_EVERY_S
    next_ask, waiting = 0.0, ""
    last_printed, said = "", False
    before = {number: signal.signal(number, note) for number in _heeded()}
    with contextlib.ExitStack() as stack:
        for number, handler in before.items():
            stack.callback(signal.signal, number, handler)
        process = subprocess.Popen(command, stdout=sink, stderr=subprocess.STDOUT, env=environment)
        pass_on()  # what came before it had started
        live = stack.enter_context(Live(console=console, refresh_per_second=4, transient=True))
        while True:
            try:
                return process.wait(timeout=1.0), told[0] if told else 0
            except subprocess.TimeoutExpired:
                progress = watcher.look()
            if told and not said:
                said = True
                console.print("Stopping: what is measured is kept.")
            if time.monotonic() >= next_ask:
                waiting = _describe_queue(watcher.ask_slurm())
                next_ask = time.monotonic() + _ASK_SLURM_EVERY_S
            line = _progress_line(progress, time.monotonic() - started) + waiting
            live.update(Text(line))
            content = progress.line() + waiting
            is_due = time.monotonic() >= next_print and content != last_printed
            if not console.is_terminal and is_due:
                console.print(line, soft_wrap=True)
                next_print, last_printed = time.monotonic() + PLAIN_LINE_EVERY_S, content


def _heeded() -> list[signal.Signals]:
    """The signals to pass on; a background job of a script ignores SIGINT, as snakemake does."""
    signals = [signal.SIGTERM, signal.SIGINT]
    return [one for one in signals if signal.getsignal(one) is not signal.SIG_IGN]


def _describe_queue(queue: Queue) -> str:
    """The foremost waiting job of this folder and how many more wait; empty if none does."""
    lines = [job.line for job in queue.jobs if job.position is not None]
    more = f", and {len(lines) - 1} more" if len(lines) > 1 else ""
    return f" · waits: {lines[0]}{more}" if lines else ""


def _progress_line(progress: Progress, elapsed: float) -> str:
    width = 24
    missing = progress.left + progress.running
    filled = round(width * (1 - missing / progress.total)) if progress.total else 0
    return f"{'━' * filled}{'╌' * (width - filled)} {progress.line()} · {duration(elapsed)} so far"
