"""Stop a study for good, and remove the lock that a killed snakemake left."""

import contextlib
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
from rich.console import Console

from scaling.errors import InputError
from scaling.record.running import runners_here
from scaling.study.inputs import study_name, study_path
from scaling.study.paths import StudyPaths

# The executor is a separate distribution, so it is run as a command.
_EXECUTOR = "snakemake_executor_plugin_submitit.stop"
_WRONG_USE = 2  # its exit code
_PATIENCE_S = 60.0  # for points to end their ranks, and snakemakes after them


def stop_study(study: str, results: Path, cluster: str, say: Callable[[str], None]) -> bool:
    """End every snakemake, allocation and point of a study; whether all of it has ended.

    `cluster` is the scheduler that its allocations were sent to, by the executor's name for it.
    `say` is told at once what is ended and what is waited for.
    """
    name = study_path(study).stem
    paths = StudyPaths(results / name)
    ended = _stop_allocations(f"{paths.folder}/", cluster, say)
    # snakemakes first: without the executor one would start the next point after its current one
    snakemakes = _snakemakes_of(name)
    for process in snakemakes:
        say(f"ending snakemake, process {process.pid} of this machine")
    _terminate(snakemakes)
    points = []
    for run in runners_here(paths.rows):
        with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended
            process = psutil.Process(run.pid)
            if os.getuid() in (0, process.uids().real):
                points.append(process)
                continue
            ended = False
            say(
                f"process {process.pid} measures a point for {process.username()}: only they or an "
                "administrator can end it"
            )
    if points:
        say(
            f"ending {len(points)} point(s) on this machine; the next run measures those without a "
            "row"
        )
    _terminate(points)
    _, left = psutil.wait_procs([*points, *snakemakes], timeout=_PATIENCE_S)
    for process in left:
        say(f"process {process.pid} has not ended yet")
    return ended and not left


def _stop_allocations(prefix: str, cluster: str, say: Callable[[str], None]) -> bool:
    command = [sys.executable, "-m", _EXECUTOR, prefix, "--cluster", cluster]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as done:
        assert done.stdout is not None
        assert done.stderr is not None
        for line in done.stdout:
            say(line.rstrip())
        errors = done.stderr.read().strip()
    if done.returncode == _WRONG_USE:
        raise InputError(f"--scheduler {errors}")
    if errors:
        say(errors)
    return done.returncode == 0


def refuse_second_run(study: str) -> None:
    """Refuse to run a study twice at once: two snakemakes would only report each other's lock.

    The study is named as the user named it.
    """
    for other in _snakemakes_of(study_name(study)):
        word = shlex.quote(study)
        raise InputError(
            f"{study}: runs already, as process {other.pid} of this machine: "
            f"`scaling status {word} --watch` shows its progress, `scaling stop {word}` ends it"
        )


def _snakemakes_of(name: str) -> list[psutil.Process]:
    def runs_it(command: list[str]) -> bool:
        studies = [word[6:].strip(' "') for word in command if word.startswith("study=")]
        return name in map(study_name, studies or ["quickstart"])

    return [one for one in snakemakes_in(Path.cwd()) if runs_it(one.info["cmdline"])]


def _terminate(processes: list[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended
            process.terminate()


def clear_stale_lock(folder: Path, console: Console) -> None:
    """Remove a lock that a killed snakemake left in `folder`, so that another can start there.

    A snakemake that still works there keeps its lock on files; two studies can run at once.
    """
    locks = folder / ".snakemake" / "locks"
    if not locks.is_dir() or not any(locks.iterdir()) or snakemakes_in(folder):
        return
    if theirs := [lock for lock in locks.iterdir() if os.getuid() not in (0, lock.stat().st_uid)]:
        try:
            owner = theirs[0].owner()
        except KeyError:  # this host does not know the name
            owner = f"user {theirs[0].stat().st_uid}"
        raise InputError(
            f"{locks}: locked by a snakemake of {owner}: wait for it; if it does not "
            "run any more, remove the lock: snakemake --unlock"
        )
    if _is_shared(folder):
        raise InputError(
            f"{locks}: locked by a snakemake that does not run on this machine; if it does not run "
            "on another one either, remove the lock: snakemake --unlock"
        )
    console.print("Removing the lock of a snakemake that was killed.", markup=False)
    shutil.rmtree(locks, ignore_errors=True)  # what stays is reported by the run itself


def snakemakes_in(folder: Path) -> list[psutil.Process]:
    """Other snakemakes on this machine that work in this folder, with command lines in `info`."""
    return [
        process
        for process in psutil.process_iter(["pid", "cmdline", "cwd"])
        if process.info["pid"] != os.getpid()
        and _runs_snakemake(process.info["cmdline"] or [])
        and process.info["cwd"] == str(folder)
    ]


def _runs_snakemake(command: list[str]) -> bool:
    """Whether this is `snakemake` or a Python that runs it, not a reader of snakemake.log."""
    names = [Path(word).name for word in command[:3]]
    return "snakemake" in names and names[0].lower().startswith(("python", "snakemake"))


def _is_shared(folder: Path) -> bool:
    """Whether the folder is on a file system that other machines mount too."""
    mounts = [m for m in psutil.disk_partitions(all=True) if folder.is_relative_to(m.mountpoint)]
    shared = {"nfs", "nfs4", "lustre", "gpfs", "beegfs", "ceph", "cifs", "smb3", "panfs", "wekafs"}
    return bool(mounts) and max(mounts, key=lambda m: len(m.mountpoint)).fstype in shared
