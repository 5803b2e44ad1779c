"""Imports what Snakemake and the verbs of a study import once, then forks one after another.

`python -m tests.warm.server FOLDER` makes FOLDER/python, which is called as a python is: with `-m`,
`-c` or a program. What it starts has the caller's words, folder, environment and files, ends as a
process of its own would, and dies with its caller; it only has imported already, which takes longer
than most of what the tests of workflows ask for. All it starts by `sys.executable` is as warm.
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

from scaling.launch.start.local import die_with_parent

IMPORTED = (
    "duckdb",
    "pyarrow.dataset",
    "pyarrow.parquet",
    "scaling.analyse.warehouse",
    "scaling.cli.prediction",
    "scaling.cli.show",
    "scaling.predict.cost.tables",
    "scaling.run.choose",
    "scaling.run.plan_writer",
    "scaling.run.snakemake",
    "scaling.run.status",
    "snakemake.cli",
    "snakemake.workflow",
    "tests.rows",
)


def main() -> None:
    folder = Path(sys.argv[1])
    die_with_parent()
    for name in IMPORTED:
        importlib.import_module(name)
    gc.freeze()  # what is forked would walk, and thereby copy, all that was imported
    words = listen(folder)
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
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def listen(folder: Path) -> list[str]:
    """Serve; returns, with the words of a caller, in each process that is to be a python."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(folder / "socket"))
        server.listen(100)
        client = [sys.executable, "-SE", str(Path(__file__).with_name("client.py"))]
        program = folder / "starting"
        program.write_text(f'#!/bin/sh\nexec {shlex.join([*client, f"{folder}/socket"])} "$@"\n')
        program.chmod(0o755)
        own = str(program.rename(folder / "python"))
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
    sys.executable = own
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
    """What `python WORDS...` does."""
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
