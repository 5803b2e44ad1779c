"""How wishes are settled when the scheduler says strange things, or nothing. The scheduler here is
a dictionary; that a real one behaves so is shown in tests/slurm."""

import time
from collections import Counter
from pathlib import Path

import pytest
from snakemake_executor_plugin_submitit import dispatch
from snakemake_executor_plugin_submitit.allocations import Wish
from snakemake_executor_plugin_submitit.dispatch import Dispatcher, Limits
from snakemake_executor_plugin_submitit.ledger import Item, Ledger, digest_of, key_of
from snakemake_executor_plugin_submitit.pack import write_json
from snakemake_executor_plugin_submitit.request import request_of
from snakemake_executor_plugin_submitit.schedulers import State
from snakemake_executor_plugin_submitit.submission import Refused


class Cluster:
    """Both sides of a scheduler: takes allocations, and is told what becomes of them."""

    def __init__(self):
        self.queries = Counter()
        self.known = {}  # what squeue would list
        self.folders = {}
        self.cancelled = []
        self.answers = True
        self.refusal = None

    def send(self, batch, allocations, request, *, name, comment, minutes, gpus):
        if self.refusal is not None:
            raise Refused(self.refusal)
        jobs = [str(100 + len(self.folders) + n) for n in range(len(allocations))]
        for job, folder in zip(jobs, allocations, strict=True):
            self.known[job] = State("PENDING")
            self.folders[job] = folder
        return [{"job": job} for job in jobs]

    def states(self, identities):
        self.queries["squeue"] += 1
        return dict(self.known) if self.answers else None

    def find(self, batch):
        return {job: self.known[job] for job, f in self.folders.items() if f.parent.name == batch}

    def cancel(self, identities):
        self.cancelled += [identity["job"] for identity in identities]

    def settle(self, job, number, code=0):
        settled = {"code": code, "reason": "ended", "began": time.time(), "ended": time.time()}
        write_json(self.folders[job] / f"{number}.settled.json", settled)


class Listener:
    def __init__(self):
        self.events = []

    def prepare(self, wish):
        self.events.append(("prepare", wish.item.name))

    def sent(self, wish, job):
        self.events.append(("sent", wish.item.name, job))

    def succeeded(self, wish):
        self.events.append(("succeeded", wish.item.name))

    def failed(self, wish, why, logs):
        self.events.append(("failed", wish.item.name, why))

    def say(self, sentence):
        self.events.append(("say", sentence))

    def take(self, *kinds):
        found = [event for event in self.events if event[0] in kinds]
        self.events.clear()
        return found


@pytest.fixture
def cluster():
    return Cluster()


@pytest.fixture
def run(tmp_path, cluster):
    """A run of the executor; a second one finds what the first has written."""

    def start(**limits):
        listener = Listener()
        dispatcher = Dispatcher(
            ledger=Ledger(tmp_path / "ledger"),
            scheduler=cluster,
            sender=cluster,
            limits=Limits(**{"latency_s": 0.0, **limits}),
            listener=listener,
            directory=tmp_path,
        )
        return dispatcher, listener

    return start


def wishes(tmp_path, *names, command="true"):
    return [
        Wish(
            request=request_of("r", {"runtime": 5}),
            item=Item(
                name=name, key=key_of("r", {"p": name}, []), command=command,
                digest=digest_of(command), limit_s=300,
            ),
            outputs=(tmp_path / name,),
        )
        for name in names
    ]  # fmt: skip


def test_a_job_that_vanished_without_accounting_is_lost_only_after_a_while(
    run, cluster, tmp_path, monkeypatch
):
    now = [0.0]
    monkeypatch.setattr(dispatch.time, "monotonic", lambda: now[0])
    dispatcher, listener = run()
    dispatcher.take(wishes(tmp_path, "a"))
    cluster.known.clear()

    for now[0] in (0.0, 30.0, 59.0):
        dispatcher.poll()
    assert listener.take("failed") == []
    now[0] = 61.0
    dispatcher.poll()

    assert listener.take("failed") == [("failed", "a", "job 100 is gone, and nobody knows how")]


def test_a_job_that_reappears_was_never_lost(run, cluster, tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(dispatch.time, "monotonic", lambda: now[0])
    dispatcher, listener = run()
    dispatcher.take(wishes(tmp_path, "a"))
    cluster.known.clear()
    dispatcher.poll()
    cluster.known["100"] = State("RUNNING")
    now[0] = 50.0
    dispatcher.poll()
    cluster.known.clear()
    now[0] = 70.0
    dispatcher.poll()

    assert listener.take("failed") == []


def test_a_scheduler_that_does_not_answer_is_no_news_and_is_said_once(run, cluster, tmp_path):
    dispatcher, listener = run()
    dispatcher.take(wishes(tmp_path, "a"))
    listener.take()
    cluster.answers = False
    for _ in range(3):
        dispatcher.poll()
    cluster.answers = True
    dispatcher.poll()

    assert [event[1] for event in listener.take("say", "failed")] == [
        "the scheduler does not answer; jobs run on, and it is asked again",
        "the scheduler answers again",
    ]


def test_a_poll_asks_once_for_all_and_not_at_all_when_nothing_is_in_flight(run, cluster, tmp_path):
    dispatcher, _ = run()
    dispatcher.poll()
    assert cluster.queries["squeue"] == 0
    dispatcher.take(wishes(tmp_path, *"abcdef"))

    dispatcher.poll()

    assert cluster.queries["squeue"] == 1


def test_what_settled_counts_even_if_the_allocation_failed_afterwards(run, cluster, tmp_path):
    dispatcher, listener = run(pack=3)
    dispatcher.take(wishes(tmp_path, "a", "b", "c"))
    cluster.settle("100", 0)
    cluster.settle("100", 1, code=3)
    cluster.known["100"] = State("NODE_FAIL")

    dispatcher.poll()

    assert listener.take("succeeded", "failed") == [
        ("succeeded", "a"),
        ("failed", "b", "job 100: exit code 3"),
        ("failed", "c", "job 100 is NODE_FAIL"),
    ]


def test_a_held_job_is_told_of_once(run, cluster, tmp_path):
    dispatcher, listener = run()
    dispatcher.take(wishes(tmp_path, "a"))
    listener.take()
    cluster.known["100"] = State("PENDING", "launch failed requeued held")

    dispatcher.poll()
    dispatcher.poll()

    assert listener.take("say") == [("say", "job 100 waits: launch failed requeued held")]


def test_a_refusal_for_now_waits_and_a_refusal_for_good_is_not_asked_again(run, cluster, tmp_path):
    dispatcher, listener = run()
    cluster.refusal = "QOSMaxSubmitJobPerUserLimit"
    dispatcher.take(wishes(tmp_path, "a"))
    cluster.refusal = None
    dispatcher.poll()
    assert listener.take("sent", "failed") == [("sent", "a", "100")]

    cluster.refusal = "invalid partition specified: x"
    dispatcher.take(wishes(tmp_path, "b"))
    cluster.refusal = None
    dispatcher.take(wishes(tmp_path, "b"))

    said = "the scheduler refused it: invalid partition specified: x"
    assert listener.take("sent", "failed") == [("failed", "b", said)] * 2


def test_an_sbatch_that_was_not_answered_is_not_sent_twice(run, cluster, tmp_path):
    dispatcher, _ = run()
    taken = []

    def send(batch, allocations, request, **_):
        taken.append(Cluster.send(cluster, batch, allocations, request, name="", comment="",
                                  minutes=1, gpus=[]))  # fmt: skip
        raise Refused("sbatch: error: Batch job submission failed: Socket timed out")

    cluster.send = send
    dispatcher.take(wishes(tmp_path, "a"))

    assert cluster.cancelled == [taken[0][0]["job"]]


def test_a_full_file_system_is_waited_for_and_what_was_taken_nevertheless_runs_nothing(
    run, cluster, tmp_path
):
    dispatcher, listener = run()
    send = cluster.send

    def broken(*arguments, **named):
        send(*arguments, **named)
        raise OSError(28, "No space left on device")

    cluster.send = broken
    dispatcher.take(wishes(tmp_path, "a"))
    assert cluster.cancelled == ["100"]
    assert (cluster.folders["100"] / "0.withdrawn").exists()
    assert "No space left on device; 1 jobs wait" in listener.take("say")[0][1]
    cluster.send = send
    dispatcher.poll()

    assert listener.take("sent", "failed") == [("sent", "a", "101")]


def test_a_second_run_takes_up_what_lives_and_sends_what_died(run, cluster, tmp_path):
    first, _ = run()
    first.take(wishes(tmp_path, "lives", "died", "done", "failed"))
    cluster.known["101"] = State("CANCELLED")
    cluster.settle("102", 0)
    (tmp_path / "done").touch()
    cluster.settle("103", 0, code=9)

    second, listener = run()
    second.take(wishes(tmp_path, "lives", "died", "done", "failed"))

    assert sorted(listener.take("sent")) == [
        ("sent", "died", "104"),
        ("sent", "done", "102"),
        ("sent", "failed", "105"),
        ("sent", "lives", "100"),
    ]


def test_what_was_taken_up_and_then_found_dead_is_sent_again_and_not_failed(run, cluster, tmp_path):
    first, _ = run()
    first.take(wishes(tmp_path, "a"))
    second, listener = run()
    second.take(wishes(tmp_path, "a"))
    cluster.known["100"] = State("NODE_FAIL")

    second.poll()

    assert listener.take("sent", "failed") == [("sent", "a", "100"), ("sent", "a", "101")]


def test_without_an_answer_nothing_is_sent_twice(run, cluster, tmp_path):
    first, _ = run()
    first.take(wishes(tmp_path, "a"))
    cluster.answers = False
    second, listener = run()

    second.take(wishes(tmp_path, "a"))

    assert listener.take("sent") == [("sent", "a", "100")]


def test_cancelling_spares_a_pack_in_which_others_still_wait_for_points(run, cluster, tmp_path):
    first, _ = run(pack=2)
    first.take(wishes(tmp_path, "mine", "theirs"))
    second, _ = run(pack=2)
    second.take(wishes(tmp_path, "mine"))

    assert second.cancel() == 0
    assert cluster.cancelled == []
    assert (cluster.folders["100"] / "0.withdrawn").exists()
    assert first.cancel() == 1
    assert cluster.cancelled == ["100"]


def test_no_more_are_in_flight_than_allowed_and_the_rest_follows(run, cluster, tmp_path):
    dispatcher, listener = run(pack=2, max_allocations=1)
    dispatcher.take(wishes(tmp_path, "a", "b", "c"))
    assert [event[1] for event in listener.take("sent")] == ["a", "b"]
    cluster.settle("100", 0)
    dispatcher.poll()
    assert listener.take("sent") == []
    cluster.settle("100", 1)

    dispatcher.poll()

    assert listener.take("sent") == [("sent", "c", "101")]


def test_a_batch_is_thrown_away_only_when_all_of_it_succeeded_and_was_seen(run, cluster, tmp_path):
    dispatcher, _ = run(pack=2)
    ledger = Ledger(tmp_path / "ledger")
    dispatcher.take(wishes(tmp_path, "a", "b"))
    batch: Path = cluster.folders["100"].parent
    cluster.settle("100", 0)
    assert not ledger.tidy(batch)
    cluster.settle("100", 1)
    assert not ledger.tidy(batch)  # its worker may still write
    (batch / "100_0_result.pkl").touch()
    assert not ledger.tidy(batch)  # Snakemake has not written down that they are done
    for name in "ab":
        ledger.forget(key_of("r", {"p": name}, []))

    assert ledger.tidy(batch)
    assert not batch.exists()
