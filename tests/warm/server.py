"""Imports what Snakemake and the verbs of a study import once, then forks one after another.

`python -m tests.warm.server FOLDER [MODULE...]` makes FOLDER/python, which is called as a python
is: with `-m`, `-c` or a program. A program has the caller's words, folder, environment and files,
ends as a process of its own would, and dies with its caller; it only has imported already, which
takes longer than most of what these tests ask for. All it starts by `sys.executable` is as warm.
Exceptions are ranks, which import what it has not, and all that a scheduler ends by ending its
processes: what submitit sends, and what runs in a job of Slurm.
"""

import atexit
import contextlib
import gc
import importlib
import marshal
import os
import runpy
import select
import shlex
import signal
import socket
import sys
import threading
import traceback
from pathlib import Path
from typing import NoReturn

COLD = (
    "-m submitit.", "-u -m submitit.", "-m scaling.launch.", "-c from scaling.launch.",
    "-m scaling.train", "-m scaling.probe",
)  # fmt: skip
IMPORTED = (
    "duckdb", "pyarrow.csv", "pyarrow.dataset", "pyarrow.parquet", "pydantic.dataclasses",
    "scaling.analyse.warehouse", "scaling.cli.prediction", "scaling.cli.show",
    "scaling.cli.verbs", "scaling.launch.probing", "scaling.predict.cost.prediction_tables",
    "scaling.predict.fit.calibrate", "scaling.predict.fit.probes",
    "scaling.predict.read.observed", "scaling.run.rounds", "scaling.run.plan_writer",
    "scaling.run.snakemake", "scaling.run.status", "scipy.optimize", "smart_open",
    "snakemake.cli", "snakemake.profiles", "snakemake.report.html_reporter",
    "snakemake.storage", "snakemake.workflow", "snakemake_executor_plugin_submitit.executor",
    "submitit", "tests.rows", "typer.main", "yte.process",
)  # fmt: skip


def main() -> None:
    folder = Path(sys.argv[1])
    cold, sys.executable = sys.executable, str(folder / "python")  # which some keep on import
    from scaling.launch.start.starter import die_with_parent

    die_with_parent()
    for name in sys.argv[2:] or IMPORTED:
        importlib.import_module(name)
    gc.freeze()  # what is forked would walk, and copy, all that was imported
    words = listen(folder, cold)
    code: object = None
    try:
        python(words)
    except SystemExit as end:
        code = end.code
    except BaseException:
        code = 1
        traceback.print_exc()
    if isinstance(code, str):
        sys.stderr.write(f"{code}\n")
    leave(code if isinstance(code, int) else int(code is not None))


def leave(code: int) -> NoReturn:
    """End as an interpreter does, but for taking apart what was imported, which takes long."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def listen(folder: Path, cold: str) -> list[str]:
    """Serve; returns, with the words of a caller, in each process that is to be a python."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(folder / "socket"))
        server.listen(100)
        client = shlex.join([cold, "-SE", str(Path(__file__).with_name("client.py"))])
        cold = shlex.quote(cold)  # the folder of the checkout may have a space in its name
        program = folder / "starting"
        program.write_text(
            f'#!/bin/sh\n[ -z "$SLURM_JOB_ID" ] || exec {cold} "$@"\n'
            f'case "$*" in {"|".join(shlex.quote(words) + "*" for words in COLD)})'
            f' exec {cold} "$@" ;; esac\nexec {client} {folder}/socket "$@"\n'
        )
        program.chmod(0o755)
        program.rename(sys.executable)
        while True:
            link, _ = server.accept()
            if not os.fork():
                break
            link.close()
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:  # those that served and have ended
                    pass
    header, files, _, _ = socket.recv_fds(link, 8, 3)
    words, directory, environment = marshal.loads(
        link.recv(int.from_bytes(header, "big"), socket.MSG_WAITALL)
    )
    child = os.fork()
    if child:
        watch(link, child)
    link.close()
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    return words


def watch(link: socket.socket, child: int) -> None:
    """Hand on the caller's signals and the child's end; never returns."""
    ended = os.pidfd_open(child)
    while True:
        ready, _, _ = select.select([link, ended], [], [])
        if ended in ready:
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            with contextlib.suppress(OSError):  # the caller has gone
                link.sendall(bytes([code if code >= 0 else 128 - code]))
            os._exit(0)
        if number := link.recv(1):
            os.kill(child, number[0])
        else:
            os.killpg(child, signal.SIGKILL)


def python(words: list[str]) -> None:
    """Run `python WORDS...`."""
    if words[0] == "-m":
        sys.argv, sys.path[0] = words[1:], str(Path.cwd())
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    elif words[0] == "-c":
        sys.argv, sys.path[0] = ["-c", *words[2:]], ""
        exec(words[1], {"__name__": "__main__"})
    else:
        sys.argv, sys.path[0] = words, str(Path(words[0]).parent.absolute())
        runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    main()
