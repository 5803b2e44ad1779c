"""A lock that a dead owner does not keep."""

import json
import os
import re
import threading

import pytest
from snakemake_executor_plugin_submitit import ownership
from snakemake_executor_plugin_submitit.ownership import OwnedElsewhere, Ownership

from tests.processes import ended_pid


@pytest.fixture
def other(tmp_path):
    """Another process has claimed `shared.txt`; `change` says how it differs from a live one."""

    def claimed(**change):
        claim = Ownership(tmp_path)
        claim.claim(["shared.txt"])
        (path,) = tmp_path.glob("*.json")
        path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
        return path

    return claimed


@pytest.fixture
def soon(monkeypatch):
    """An owner without a heartbeat is given up at once."""
    monkeypatch.setattr(ownership, "SILENCE_S", 0.5)


def beats(path, said):
    """The other owner's heartbeat comes while it is watched."""

    def beat(sentence):
        said.append(sentence)
        os.utime(path, (path.stat().st_atime, path.stat().st_mtime + 1))

    return lambda sentence: threading.Timer(0.3, beat, [sentence]).start()


def test_of_two_that_make_the_same_file_the_second_is_told_who_has_it(tmp_path, other):
    other()
    with pytest.raises(OwnedElsewhere, match=rf"pid {os.getpid()} on .* is making shared\.txt"):
        Ownership(tmp_path).claim(["a.txt", "shared.txt"])
    assert len(list(tmp_path.glob("*.json"))) == 1


@pytest.mark.parametrize("dead", ["ended", "pid used again"])
def test_a_dead_owner_and_one_whose_pid_was_used_again_own_nothing(tmp_path, other, dead):
    other(**({"pid": ended_pid()} if dead == "ended" else {"began": "7"}))
    Ownership(tmp_path).claim(["shared.txt"])
    assert len(list(tmp_path.glob("*.json"))) == 1


def test_an_owner_on_another_login_node_lives_if_its_heartbeat_does(tmp_path, other):
    path, said = other(host="login2"), []
    with pytest.raises(OwnedElsewhere, match="on login2"):
        Ownership(tmp_path).claim(["shared.txt"], beats(path, said))
    assert len(said) == 1


@pytest.mark.usefixtures("soon")
def test_an_owner_killed_on_another_login_node_is_given_up_soon(tmp_path, other):
    path, said = other(host="login2"), []
    Ownership(tmp_path).claim(["shared.txt"], said.append)
    assert not path.exists()
    assert len(said) == 1


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize(
    ("change", "jobs", "sentence"),
    [
        ({"uid": 2000}, ["7", "8"], "job 7, 8, sent by user 2000, may be .* have user 2000"),
        ({"uid": 2000}, None, "what the scheduler cannot list now, sent by user 2000, may be"),
        ({"uid": 2000}, [], None),
        ({}, ["7"], None),  # they are taken up again
    ],
)
def test_jobs_of_a_dead_owner_are_awaited_unless_they_can_be_taken_up(
    tmp_path, other, monkeypatch, change, jobs, sentence
):
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    path, told = other(host="login2", **change), ""
    try:
        Ownership(tmp_path).claim(["shared.txt"], left_by=lambda uid: jobs)
    except OwnedElsewhere as error:
        told = str(error)
    assert re.search(sentence, told) if sentence else not told
    assert path.exists() == bool(sentence)


def test_another_users_snakemake_on_this_host_is_known_by_its_heartbeat(
    tmp_path, other, monkeypatch
):
    path = other(uid=2000, began="7")  # hosts may hide processes of other users
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    with pytest.raises(OwnedElsewhere, match=r"pid \d+ of user 2000 on .* have user 2000 stop it"):
        Ownership(tmp_path).claim(["shared.txt"], beats(path, []))


def test_an_owner_that_was_taken_for_dead_knows_it(tmp_path):
    owner = Ownership(tmp_path)
    assert not owner.is_lost
    owner.claim(["a.txt"])
    assert not owner.is_lost
    next(tmp_path.glob("*.json")).unlink()
    assert owner.is_lost
    owner.release()
    assert not owner.is_lost


def test_a_claim_that_a_power_failure_has_emptied_is_nobodys(tmp_path):
    (tmp_path / "0.json").touch()
    Ownership(tmp_path).claim(["a.txt"])
