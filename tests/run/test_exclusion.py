"""Which nodes later points leave out."""

import dataclasses
import json

import pyarrow as pa

from scaling.record.files import write_rows, write_table
from scaling.run.sweep import hosts_to_avoid
from scaling.study.paths import StudyPaths
from scaling.study.plan_file import Allocation, read_json_object
from tests.points import tiny_point
from tests.rows import row_of

ASKED = Allocation(world_size=8, nodes=1, ranks_per_node=8, minutes=5)


def test_a_point_whose_attempt_lost_a_node_runs_on_other_nodes(tmp_path):
    paths, point = StudyPaths(tmp_path), tiny_point()
    failed = {"step_time_s": None, "error_message": "no"}
    for attempt, outcome, host in ((1, "node_failed", "n1"), (2, "timeout", "n2")):
        row = row_of(point, outcome=outcome, hosts=[host], attempt=attempt, **failed)
        write_rows(paths.retried / f"{point.point_id}.{attempt}.parquet", [row])
    assert hosts_to_avoid(paths, point.point_id, ASKED, 4) == ["n1"]
    assert hosts_to_avoid(paths, point.point_id, ASKED, 1) == []
    assert hosts_to_avoid(paths, "other", ASKED, 4) == []


def test_a_repeat_goes_to_nodes_that_its_layout_has_not_seen_if_enough_are_left(tmp_path):
    paths = StudyPaths(tmp_path)
    again = [{"point_id": "p", "hosts": ["n1", "n2"]}, {"point_id": "q", "hosts": ["n4"]}]
    write_table(paths.round(1), pa.Table.from_pylist(again))
    paths.excluded.write_text(json.dumps({"n3": "slow"}))
    repeat = dataclasses.replace(ASKED, repeat=1)

    def avoided(nodes):
        return hosts_to_avoid(paths, "p", repeat, nodes)

    assert avoided(4) == ["n1", "n2", "n3"]
    assert avoided(3) == ["n3"]
    assert avoided(1) == []


def test_a_file_that_names_nobody_excludes_nobody(tmp_path):
    for text in ("", "[]", "{"):
        (tmp_path / "excluded.json").write_text(text)
        assert read_json_object(tmp_path / "excluded.json") == {}
