"""A scheduler that is a dictionary; that a real one behaves so is shown in tests/slurm."""

import signal
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
from snakemake_executor_plugin_submitit import dispatch, submitting
from snakemake_executor_plugin_submitit.dispatch import Dispatcher
from snakemake_executor_plugin_submitit.pack import write_json
from snakemake_executor_plugin_submitit.records import WantedJob, digest_of, key_of
from snakemake_executor_plugin_submitit.schedulers import Listed, Refused
from snakemake_executor_plugin_submitit.schedulers.slurm.resources import avoiding, request_of
from snakemake_executor_plugin_submitit.schedulers.slurm.words import kind_of, state_of
from snakemake_executor_plugin_submitit.settings import ExecutorSettings


class Cluster:
    """Both sides of a scheduler: takes allocations, and is told what becomes of them."""

    def __init__(self):
        self.queries = Counter()
        self.known = {}  # what squeue would list
        self.folders = {}
        self.requests = {}
        self.cancelled = []
        self.answers = True
        self.refusal = None
        self.asked = 0  # calls of sbatch
        self.longest = None  # minutes of an allocation

    def avoiding(self, request, hosts):
        return avoiding(request, hosts)

    def longest_minutes(self, request):
        return self.longest

    def send(self, batch, request, *, name, comment):
        self.asked += 1
        if self.refusal is not None:
            raise Refused(self.refusal, kind_of(self.refusal))
        job = str(100 + len(self.folders))
        self.folders[job] = batch
        self.requests[job] = dict(request.options)
        self.shows("PENDING", job=job)
        return job

    def listed(self, uid=None):
        self.queries["squeue"] += 1
        if not self.answers:
            return None
        return [
            Listed(id=job, state=state, directory=str(Path.cwd()), batch=self.folders[job].name)
            for job, state in self.known.items()
        ]

    def accounted(self, jobs):
        return {}

    def left_in(self, directory, uid):
        return [] if self.answers else None

    def cancel(self, jobs):
        self.cancelled += jobs
        return self.answers

    def shows(self, *state, job="100"):
        self.known[job] = state_of(*state)

    def starts(self, restarts=0, job="100"):
        write_json(self.folders[job] / "started.json", {"restarts": restarts})

    def begins(self, number=0, job="100"):
        self.starts(job=job)
        write_json(self.folders[job] / f"{number}.running.json", {"pid": 1, "host": "n1"})

    def finishes(self, number=0, code=0, job="100"):
        finished = {"code": code, "reason": "ended", "began": time.time(), "ended": time.time()}
        write_json(self.folders[job] / f"{number}.finished.json", finished)


class Listener:
    """Notes each call: its name, the job's, and the first word about it."""

    def __init__(self):
        self.events = []

    def __getattr__(self, kind):
        return lambda job, *said: self.events.append((kind, getattr(job, "name", job), *said[:1]))


class Run(Dispatcher):
    """A run of the executor that has sent jobs of these names."""

    def __init__(self, cluster, *names, outputs_are_complete=False, **settings):
        self.listener = Listener()
        super().__init__(
            scheduler=cluster, settings=ExecutorSettings(**settings), listener=self.listener,
            latency_s=0.0, outputs_are_complete=outputs_are_complete,
        )  # fmt: skip
        self.send(*names)

    def send(self, *names, **resources):
        if names:
            self.submit([wanted_job(name, **resources) for name in names])

    def told(self, *kinds):
        """The events of these kinds since the last call."""
        found = [event for event in self.listener.events if event[0] in kinds]
        self.listener.events.clear()
        return found


@pytest.fixture
def keep_signal_handler():
    """A pack minds SIGTERM; the test process shall not go on doing so."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def cluster():
    return Cluster()


@pytest.fixture
def clock(monkeypatch):
    """The clock's time: its one item."""
    now = [1000.0]
    ours = SimpleNamespace(monotonic=lambda: now[0])
    for module in (dispatch, submitting):  # nobody else's time stands still
        monkeypatch.setattr(module, "time", ours)
    return now


@pytest.fixture
def run(tmp_path, cluster, monkeypatch):
    """Starts a run; a second one finds what the first has written."""
    monkeypatch.chdir(tmp_path)
    return lambda *names, **settings: Run(cluster, *names, **settings)


def write_pack(folder, *commands, limit_s=300, **more):
    """The folder of a pack of these commands, which run in the folder above it."""
    folder.mkdir()
    item = {"limit_s": limit_s, "environment": {}, "outputs": []}
    pack = {
        "directory": str(folder.parent), "environment": {}, "outputs_are_complete": False,
        "restarts": 3, "items": [{**item, "name": c, "command": c} for c in commands],
    }  # fmt: skip
    write_json(folder / "pack.json", pack | more)
    return folder


def wanted_job(name, command="true", output=None, **resources):
    return WantedJob(
        name=name,
        key=key_of("r", {"p": name}, []),
        command=command,
        digest=digest_of(command),
        request=request_of("r", {"runtime": 5, **resources}),
        outputs=(output or str(Path.cwd() / name),),
    )
