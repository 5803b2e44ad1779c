"""The files of a job are checked whole before it does anything: a sentence, never a traceback."""

import copy
import datetime
import json
import os
import random
from typing import Any

import psutil
import pytest

from scaling.errors import InputError
from scaling.launch.point_files import read_point, read_probe_plan
from scaling.probe.plan import plan_from_json
from scaling.record.files import read_round
from scaling.record.running import live_runner
from scaling.run import planning
from scaling.study.load import load_study
from scaling.study.point import point_from_json
from scaling.study.study import read_study_info
from tests.plans import fitting_plan

READERS: dict[str, tuple[Any, Any]] = {
    "point": (read_point, point_from_json),
    "probe": (read_probe_plan, plan_from_json),
}


@pytest.fixture(scope="module")
def texts():
    on_gpus = load_study("zero_stages", mode="measure", cluster="h100-80gb-dgx")
    probe = planning.plan_probe(on_gpus, fitting_plan(on_gpus))
    assert probe is not None
    (point, *_) = fitting_plan(load_study("quickstart")).points
    return {"point": point.to_json(), "probe": probe.to_json()}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("warmup_steps", -1), ("warmup_steps", 2**63), ("peak_flop_per_s", float("nan")),
        ("peak_flop_per_s", 1e300), ("point_id", "/etc/x"), ("point_id", "../x"), ("point_id", ""),
        ("repeat", -1), ("repeat", 2**63), ("at_least_steps", -1),
    ],
)  # fmt: skip
def test_a_point_with_a_value_that_cannot_be_is_refused(texts, tmp_path, key, value):
    read, _ = READERS["point"]
    (tmp_path / "a.json").write_text(json.dumps(json.loads(texts["point"]) | {key: value}))
    with pytest.raises(InputError, match=r"a\.json: is no point of this version"):
        read(tmp_path / "a.json")


WRONG = [
    None, -1, 0, 1.5, 2**70, "x", "8", "", True, [], {}, [1], "../../x", float("nan"), "\x1b[2J",
]  # fmt: skip


def mutated(text, rng):
    """A text with one value replaced or removed, or one key more; or cut short."""
    said = json.loads(text)
    at = said
    while True:
        keys = list(at) if isinstance(at, dict) else range(len(at))
        key = rng.choice(list(keys))
        inner = at[key]
        if not isinstance(inner, dict | list) or not inner or rng.random() < 0.2:
            break
        at = inner
    match rng.randrange(8):
        case 0:
            del at[key]
        case 1 if isinstance(at, dict):
            at["unknown"] = 1
        case 2:
            return text[: rng.randrange(len(text) - 2)]
        case _:
            at[key] = copy.deepcopy(rng.choice(WRONG))
    return json.dumps(said)


@pytest.mark.parametrize("kind", READERS)
def test_a_broken_file_is_read_as_what_it_says_or_refused_in_one_sentence(kind, texts, tmp_path):
    read, parse = READERS[kind]
    rng = random.Random(7)
    path = tmp_path / "a.json"
    refused = []
    for _ in range(150):
        text = mutated(texts[kind], rng)
        path.write_text(text)
        try:
            found = read(path)
        except InputError as error:
            refused.append(str(error))
            continue
        assert found == parse(text)
        if kind == "point":
            assert found.layout.world_size >= 1
            assert found.time_limit_s > 0
    assert len(refused) > 75
    assert all(said.startswith(f"{path}: is no {kind} of this version (") for said in refused)
    assert all(said.isprintable() for said in refused)


@pytest.mark.parametrize("kind", READERS)
def test_a_fifo_in_place_of_a_file_is_refused_without_waiting(kind, tmp_path):
    os.mkfifo(tmp_path / "given")
    with pytest.raises(InputError, match="given: is no file; a"):
        READERS[kind][0](tmp_path / "given")


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "\xff", '{"pid": "x"}', '{"pid": 1e400}'])
def test_a_broken_marker_marks_nothing(text, tmp_path):
    marker = tmp_path / "a.running"
    marker.write_bytes(text.encode("latin-1"))
    assert not live_runner(marker)
    now = datetime.datetime.now(datetime.UTC).isoformat()
    facts = {"pid": os.getpid(), "host": os.uname()[1], "started_at": now, "time_limit_s": 9}
    facts["since_boot_s"] = psutil.Process().create_time() - psutil.boot_time()
    marker.write_text(json.dumps(facts))
    assert live_runner(marker)


@pytest.mark.parametrize(
    "text",
    ["", "[1]", "[" * 5000, '{"mode": "guess"}', '{"knee_share": "x"}', '{"replicates": "../etc"}'],
)
def test_a_broken_study_json_is_one_sentence(text, tmp_path):
    (tmp_path / "study.json").write_text(text)
    with pytest.raises(InputError, match=r"study\.json: is not what `scaling plan` writes: "):
        read_study_info(tmp_path)


def test_a_broken_choice_is_one_sentence(tmp_path):
    (tmp_path / "8.parquet").write_bytes(b"PAR1")
    with pytest.raises(InputError, match=r"8\.parquet: is no table of a round"):
        read_round(tmp_path / "8.parquet")
