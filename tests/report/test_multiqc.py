"""MultiQC custom content: the best layouts as a table, unknown values left out."""

import json

import pytest

pytestmark = pytest.mark.slow


def test_every_best_layout_is_a_sample_without_unknowns(full_study, full_tables):
    content = json.loads((full_study / "scaling_mqc.json").read_text(encoding="utf-8"))
    assert content["plot_type"] == "table"
    assert len(content["data"]) == len(full_tables["best"])
    for values in content["data"].values():
        assert values.keys() <= content["headers"].keys()
        assert None not in values.values()
        assert values["tokens_per_s"] > 0


def test_a_rank_on_a_cpu_has_no_mfu_in_it(full_study):
    content = json.loads((full_study / "scaling_mqc.json").read_text(encoding="utf-8"))
    tiny = [values for name, values in content["data"].items() if name.startswith("tiny")]
    assert tiny
    assert all("mfu" not in values for values in tiny)
