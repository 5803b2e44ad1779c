"""How wishes are settled when the scheduler says strange things, or nothing. The scheduler here is
a dictionary; that a real one behaves so is shown in tests/slurm."""

import os
import time
from collections import Counter
from pathlib import Path

import pytest
from snakemake_executor_plugin_submitit.allocations import Limits, Wish
from snakemake_executor_plugin_submitit.dispatch import Dispatcher
from snakemake_executor_plugin_submitit.ledger import Item, Ledger, digest_of, key_of
from snakemake_executor_plugin_submitit.pack import write_json
from snakemake_executor_plugin_submitit.request import request_of
from snakemake_executor_plugin_submitit.schedulers import Refused
from snakemake_executor_plugin_submitit.schedulers.slurm import kind_of, state_of
from snakemake_executor_plugin_submitit.tidying import OLD_S, tidy
from snakemake_executor_plugin_submitit.unfit import UnfitHosts


class Cluster:
    """Both sides of a scheduler: takes allocations, and is told what becomes of them."""

    gpus = None
    arrays = True
    forgets = True

    def __init__(self):
        self.queries = Counter()
        self.known = {}  # what squeue would list
        self.folders = {}
        self.requests = {}
        self.cancelled = []
        self.answers = True
        self.refusal = None
        self.asked = 0  # calls of sbatch

    def send(self, batch, allocations, request, *, name, comment, minutes, gpus):
        self.asked += 1
        if self.refusal is not None:
            raise Refused(self.refusal, kind_of(self.refusal))
        jobs = [str(100 + len(self.folders) + n) for n in range(len(allocations))]
        for job, folder in zip(jobs, allocations, strict=True):
            self.known[job] = state_of("PENDING")
            self.folders[job] = folder
            self.requests[job] = dict(request.options)
        return [{"job": job} for job in jobs]

    def states(self, identities):
        self.queries["squeue"] += 1
        return dict(self.known) if self.answers else None

    def find(self, batch, request):
        if not self.answers:
            return None
        mine = [job for job, folder in self.folders.items() if folder.parent.name == batch]
        return [{"job": job} for job in mine if job in self.known and self.known[job].live]

    def cancel(self, identities):
        self.cancelled += [identity["job"] for identity in identities]

    def begin(self, job, number):
        write_json(self.folders[job] / "started.json", {})
        write_json(self.folders[job] / f"{number}.running.json", {"pid": 1, "host": "n1"})

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
def clock(monkeypatch):
    """What the clock says: its one item."""
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def run(tmp_path, cluster):
    """A run of the executor; a second one finds what the first has written."""

    def start(**limits):
        listener = Listener()
        dispatcher = Dispatcher(
            ledger=Ledger(tmp_path / "ledger"),
            scheduler=cluster,
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


def test_a_job_that_vanished_without_accounting_is_lost_after_a_while_and_withdrawn_first(
    run, cluster, tmp_path, clock
):
    dispatcher, listener = run()
    dispatcher.take(wishes(tmp_path, "a"))
    cluster.begin("100", 0)
    cluster.known.clear()

    for clock[0] in (0.0, 30.0, 59.0):
        dispatcher.poll()
    assert listener.take("failed") == []
    assert cluster.cancelled == []
    clock[0] = 61.0
    dispatcher.poll()

    assert listener.take("failed") == [("failed", "a", "job 100 is gone, and nobody knows how")]
    assert cluster.cancelled == ["100"]
    assert (cluster.folders["100"] / "0.withdrawn").exists()


def test_a_job_that_reappears_was_never_lost(run, cluster, tmp_path, clock):
    dispatcher, listener = run()
    dispatcher.take(wishes(tmp_path, "a"))
    cluster.known.clear()
    dispatcher.poll()
    cluster.known["100"] = state_of("RUNNING")
    clock[0] += 50.0
    dispatcher.poll()
    cluster.known.clear()
    clock[0] += 20.0
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
    cluster.begin("100", 2)
    cluster.known["100"] = state_of("NODE_FAIL")

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
    cluster.known["100"] = state_of("PENDING", "launch failed requeued held")

    dispatcher.poll()
    dispatcher.poll()

    assert listener.take("say") == [("say", "job 100 waits: launch failed requeued held")]


def test_a_refusal_for_good_is_not_asked_again(run, cluster, tmp_path):
    dispatcher, listener = run()
    cluster.refusal = "invalid partition specified: x"
    dispatcher.take(wishes(tmp_path, "b"))
    cluster.refusal = None
    dispatcher.take(wishes(tmp_path, "b"))

    said = "the scheduler refused it: invalid partition specified: x"
    assert listener.take("sent", "failed") == [("failed", "b", said)] * 2


def test_a_limit_is_asked_for_less_and_less_often_until_something_ends(
    run, cluster, tmp_path, clock
):
    dispatcher, listener = run()
    dispatcher.take(wishes(tmp_path, "first"))
    cluster.refusal = "QOSMaxSubmitJobPerUserLimit"
    dispatcher.take(wishes(tmp_path, *"abcdefghij"))
    for clock[0] in range(1000, 1100):
        dispatcher.poll()

    assert cluster.asked == 1 + 5  # at 0, 5, 15, 35 and 75 s, once for all ten
    assert len(list((tmp_path / "ledger").glob("*/*/pack.json"))) == 1  # of the first
    cluster.refusal = None
    cluster.settle("100", 0)
    dispatcher.poll()
    assert len(listener.take("sent")) == 1 + 10


def test_words_that_nobody_knows_are_asked_again_and_no_judgement_on_what_comes_later(
    run, cluster, tmp_path, clock
):
    dispatcher, listener = run()
    cluster.refusal = "Batch job submission failed: the moon is full"
    dispatcher.take(wishes(tmp_path, "a"))
    dispatcher.poll()
    assert listener.take("failed") == []
    for _ in range(20):
        clock[0] += 300
        dispatcher.poll()

    assert listener.take("failed") == [
        ("failed", "a", f"the scheduler refused it: {cluster.refusal}")
    ]
    assert cluster.asked == 7
    cluster.refusal = None
    dispatcher.take(wishes(tmp_path, "a"))
    assert [event[1] for event in listener.take("sent")] == ["a"]


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("Batch job submission failed: Zero Bytes were transmitted or received", "away"),
        ("Batch job submission failed: Socket timed out on send/recv operation", "away"),
        ("Unable to contact slurm controller (connect failure)", "away"),
        ("Slurm temporarily unable to accept job, sleeping and retrying; Socket timed out", "away"),
        ("Batch job submission failed: I/O error writing script/environment to file", "unknown"),
        ("Invalid authentication credential", "unknown"),
        (
            "QOSMaxSubmitJobPerUserLimit; Job violates accounting/QOS policy (job submit limit)",
            "busy",
        ),
        ("QOSMaxWallDurationPerJobLimit; Job violates accounting/QOS policy", "refused"),
        ("Batch job submission failed: Invalid qos specification", "refused"),
        ("Batch job submission failed: Requested node configuration is not available", "refused"),
        ("unrecognized option '--frobnicate'", "refused"),
    ],
)
def test_what_sbatch_says_is_final_only_where_its_words_are_known(said, kind):
    assert kind_of(said) == kind


def test_an_sbatch_that_was_not_answered_is_sent_again_and_the_stray_is_cancelled_when_seen(
    run, cluster, tmp_path, clock
):
    dispatcher, listener = run()
    send = cluster.send

    def unanswered(batch, allocations, request, **named):
        send(batch, allocations, request, **named)
        cluster.answers = False
        raise Refused("Batch job submission failed: Zero Bytes were transmitted", "away")

    cluster.send = unanswered
    dispatcher.take(wishes(tmp_path, "a"))
    stray = cluster.folders["100"]
    assert (stray / "0.withdrawn").exists()
    assert cluster.cancelled == []
    cluster.answers, cluster.send = True, send
    clock[0] += 10
    dispatcher.poll()

    assert cluster.cancelled == ["100"]
    assert listener.take("sent", "failed") == [("sent", "a", "101")]
    cluster.known["100"] = state_of("CANCELLED")
    for _ in range(3):
        clock[0] += 40
        dispatcher.poll()
    assert not stray.exists()


def test_a_full_file_system_is_waited_for_and_what_was_taken_nevertheless_runs_nothing(
    run, cluster, tmp_path, clock
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
    clock[0] += 5
    dispatcher.poll()

    assert listener.take("sent", "failed") == [("sent", "a", "101")]


def test_a_ledger_that_cannot_be_written_to_loses_no_wish(
    run, cluster, tmp_path, clock, monkeypatch
):
    dispatcher, listener = run()

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "write_pack", full)
        patch.setattr(Ledger, "withdraw", full)
        dispatcher.take(wishes(tmp_path, "a"))
        assert cluster.asked == 0
    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "write_submitted", full)
        clock[0] += 5
        dispatcher.poll()

    assert listener.take("sent", "failed") == [("sent", "a", "100")]


def test_nothing_is_sent_whose_results_could_not_be_written(
    run, cluster, tmp_path, clock, monkeypatch
):
    dispatcher, listener = run()

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("tempfile.TemporaryFile", full)
        dispatcher.take(wishes(tmp_path, "a"))
        for _ in range(5):
            clock[0] += 400
            dispatcher.poll()
        assert cluster.asked == 0
    clock[0] += 400
    dispatcher.poll()

    assert listener.take("sent", "failed") == [("sent", "a", "100")]


def test_a_second_run_takes_up_what_lives_and_sends_what_died(run, cluster, tmp_path):
    first, _ = run()
    first.take(wishes(tmp_path, "lives", "died", "done", "failed"))
    cluster.known["101"] = state_of("CANCELLED")
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
    cluster.known["100"] = state_of("NODE_FAIL")

    second.poll()

    assert listener.take("sent", "failed") == [("sent", "a", "100"), ("sent", "a", "101")]


def test_without_an_answer_nothing_is_sent_twice(run, cluster, tmp_path):
    first, _ = run()
    first.take(wishes(tmp_path, "a"))
    cluster.answers = False
    second, listener = run()

    second.take(wishes(tmp_path, "a"))

    assert listener.take("sent") == [("sent", "a", "100")]


def test_a_job_cancelled_from_outside_costs_an_attempt_only_of_the_point_that_ran(
    run, cluster, tmp_path, clock
):
    dispatcher, listener = run(pack=3)
    dispatcher.take(wishes(tmp_path, "done", "runs", "waits"))
    cluster.settle("100", 0)
    cluster.begin("100", 1)
    cluster.known["100"] = state_of("CANCELLED")
    listener.take()
    dispatcher.poll()

    assert listener.take("sent", "failed") == [
        ("failed", "runs", "job 100 is CANCELLED"),
        ("sent", "waits", "101"),
    ]


def test_a_preempted_allocation_costs_no_attempt_of_anyone(run, cluster, tmp_path, clock):
    dispatcher, listener = run(pack=2)
    dispatcher.take(wishes(tmp_path, "runs", "waits"))
    cluster.begin("100", 0)
    cluster.known["100"] = state_of("PREEMPTED")
    listener.take()
    dispatcher.poll()

    assert listener.take("sent", "failed") == [("sent", "runs", "101"), ("sent", "waits", "101")]


def test_allocations_that_always_end_before_they_begin_are_given_up_in_the_end(
    run, cluster, tmp_path
):
    dispatcher, listener = run()
    dispatcher.take(wishes(tmp_path, "a"))
    for _ in range(9):
        cluster.known = dict.fromkeys(cluster.known, state_of("CANCELLED"))
        dispatcher.poll()

    assert [event[1:] for event in listener.take("sent", "failed")] == [
        *[("a", str(100 + n)) for n in range(4)],
        ("a", "job 103 is CANCELLED"),
    ]


def test_an_allocation_that_failed_before_its_worker_ran_is_told_with_its_last_words(
    run, cluster, tmp_path
):
    dispatcher, listener = run(pack=2)
    dispatcher.take(wishes(tmp_path, "a", "b"))
    log = cluster.folders["100"].parent / "100_0_log.out"
    log.write_text("hello\na line of slurm_setup failed: module load cuda/99\n")
    cluster.known["100"] = state_of("FAILED")
    dispatcher.poll()

    why = "job 100 is FAILED: a line of slurm_setup failed: module load cuda/99"
    assert listener.take("failed") == [("failed", "a", why), ("failed", "b", why)]


def test_points_that_are_to_be_repeated_wait_for_the_end_of_their_pack_and_go_together(
    run, cluster, tmp_path
):
    dispatcher, listener = run(pack=3)
    three = wishes(tmp_path, "a", "b", "c")
    dispatcher.take(three)
    for number in range(3):
        listener.take()
        cluster.settle("100", number, code=1)
        dispatcher.poll()
        dispatcher.take([three[number]])  # as Snakemake does at once
    dispatcher.poll()

    assert listener.take("sent") == [("sent", name, "101") for name in "abc"]


@pytest.mark.parametrize("whole", [True, False])
def test_an_output_that_is_there_is_finished_whatever_became_of_its_allocation(
    run, cluster, tmp_path, whole
):
    dispatcher, listener = run(whole_outputs=whole)
    dispatcher.take(wishes(tmp_path, "a"))
    cluster.begin("100", 0)
    (tmp_path / "a").touch()  # and its end could not be written down
    cluster.known["100"] = state_of("FAILED")
    dispatcher.poll()

    told = ("succeeded", "a") if whole else ("failed", "a", "job 100 is FAILED")
    assert listener.take("succeeded", "failed") == [told]


def test_a_host_that_can_run_nothing_is_left_out_after_two_failures_and_named(
    run, cluster, tmp_path
):
    dispatcher, listener = run()
    dispatcher.take(wishes(tmp_path, "a", "b"))
    for job in ("100", "101"):
        why = "measure a found that nothing can run there"
        write_json(cluster.folders[job] / "started.json", {})
        write_json(cluster.folders[job] / "unfit.json", {"host": "n7", "why": why})
        cluster.known[job] = state_of("FAILED")
        dispatcher.poll()

    assert [event[1] for event in listener.take("failed")] == []
    assert cluster.requests["102"] == {"nodes": 1}  # after the first failure
    assert cluster.requests["103"] == {"nodes": 1, "exclude": "n7"}
    assert dispatcher.report() == [f"n7 was left out after 2 failures of its own: {why}"]


def test_hosts_that_a_site_excludes_stay_excluded():
    unfit = UnfitHosts()
    for folder in ("1", "2"):
        unfit.blame(Path(folder), "n7", "why")
    request = request_of("r", {"runtime": 5, "slurm_extra": "--exclude=n1,n2"})

    assert dict(unfit.avoided(request).options)["exclude"] == "n1,n2,n7"


def test_told_to_end_it_sends_nothing_more_and_waits_for_what_is_in_flight(run, cluster, tmp_path):
    dispatcher, listener = run(max_allocations=1)
    dispatcher.take(wishes(tmp_path, "a", "b"))
    dispatcher.send_no_more()
    dispatcher.poll()
    cluster.settle("100", 0)
    dispatcher.poll()

    assert listener.take("sent", "succeeded", "failed") == [
        ("sent", "a", "100"),
        ("failed", "b", "it was not sent: snakemake was told to end"),
        ("succeeded", "a"),
    ]
    assert cluster.asked == 1


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
    assert not ledger.tidy(batch)  # another run of this folder was faster


@pytest.mark.parametrize("state", ["PENDING", "CANCELLED"])
def test_what_failed_is_thrown_away_when_it_is_old_unless_it_may_yet_run(
    run, cluster, tmp_path, state
):
    dispatcher, _ = run()
    ledger = Ledger(tmp_path / "ledger")
    dispatcher.take(wishes(tmp_path, "a"))
    batch = cluster.folders["100"].parent
    cluster.known["100"] = state_of(state)
    tidy(ledger, cluster)
    assert batch.exists()
    long_ago = time.time() - OLD_S - 1
    for path in [*batch.rglob("*"), batch]:
        os.utime(path, (long_ago, long_ago))

    tidy(ledger, cluster)

    assert batch.exists() == (state == "PENDING")
