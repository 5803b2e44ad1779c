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
        self.known[job] = state_of("PENDING")
        self.folders[job] = batch
        self.requests[job] = dict(request.options)
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

    def begin(self, job, number):
        write_json(self.folders[job] / "started.json", {})
        write_json(self.folders[job] / f"{number}.running.json", {"pid": 1, "host": "n1"})

    def finish(self, job, number, code=0):
        finished = {"code": code, "reason": "ended", "began": time.time(), "ended": time.time()}
        write_json(self.folders[job] / f"{number}.finished.json", finished)


class Listener:
    def __init__(self):
        self.events = []

    def prepare(self, job):
        self.events.append(("prepare", job.name))

    def sent(self, job, job_id):
        self.events.append(("sent", job.name, job_id))

    def succeeded(self, job):
        self.events.append(("succeeded", job.name))

    def failed(self, job, why, logs):
        self.events.append(("failed", job.name, why))

    def say(self, sentence):
        self.events.append(("say", sentence))

    def take(self, *kinds):
        found = [event for event in self.events if event[0] in kinds]
        self.events.clear()
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
    """A run of the executor; a second one finds what the first has written."""
    monkeypatch.chdir(tmp_path)

    def start(outputs_are_complete=False, **settings):
        listener = Listener()
        dispatcher = Dispatcher(
            scheduler=cluster,
            settings=ExecutorSettings(**settings),
            listener=listener,
            latency_s=0.0,
            outputs_are_complete=outputs_are_complete,
        )
        return dispatcher, listener

    return start


def wanted_jobs(tmp_path, *names, command="true", **resources):
    request = request_of("r", {"runtime": 5, **resources})
    return [
        WantedJob(
            name=name,
            key=key_of("r", {"p": name}, []),
            command=command,
            digest=digest_of(command),
            request=request,
            outputs=(str(tmp_path / name),),
        )
        for name in names
    ]
