"""Rehearsals decide about layouts whose predicted memory lies near the capacity."""

import pytest

from scaling.cluster.hardware import GIB
from scaling.layout.layout import Layout
from scaling.predict.advise.candidates import Search
from scaling.predict.advise.recommendation import recommend
from scaling.predict.advise.rehearse import (
    best_of_sizes,
    memory_refusals,
    nearest_first,
    predict_rehearsed,
)
from scaling.predict.cost.model import MEMORY_SIGMA, MEMORY_SIGMA_REHEARSED, predict
from scaling.predict.cost.prediction_tables import prediction_table
from tests.shipped import CLUSTERS, MODELS

ROWS = [{"zero_stage": 1, "dp": 8, "micro_batch_size": size} for size in (1, 7, 8, 16)]


@pytest.fixture
def asked(points):
    shape = {"num_layers": 16, "hidden_size": 2048, "num_heads": 16, "vocab_size": 32000}
    work = {"framework": "scaling", "seq_length": 4096, "cluster": "h100-80gb-dgx"}
    return points(*({**shape, **work, **row} for row in ROWS))


def test_only_shown_rows_near_the_capacity_are_rehearsed(asked):
    ratio = predict(asked).need_bytes / predict(asked).capacity_bytes
    near = [row for row in range(4) if 0.8 <= ratio[row] <= 1.15]
    assert near
    assert len(near) < 4
    heard = []
    predict_rehearsed(
        asked, None, lambda _: range(4), lambda rows: heard.extend(rows) or [None] * len(rows)
    )
    assert heard == near
    assert sorted(nearest_first(predict(asked))) == near


def test_a_rehearsal_decides_with_a_small_error(asked):
    row = nearest_first(predict(asked))[0]
    for size, fits in ((60.0 * GIB, True), (90.0 * GIB, False)):
        found = predict_rehearsed(
            asked, None, lambda _: [row], lambda rows, of=size: [of] * len(rows)
        )
        assert found.fits[row] == fits
        assert predict(asked).fits_chance[row] > 0.02
        assert (found.fits_chance[row] < 0.02) != fits
        assert found.memory_sigma[row] == MEMORY_SIGMA_REHEARSED < MEMORY_SIGMA
        terms = sum(values[row] for values in found.memory_terms.values())
        assert terms == pytest.approx(found.memory_bytes[row])
        kinds = prediction_table(asked, found)["memory_from"].to_pylist()
        assert [at for at in range(4) if kinds[at] == "rehearsed"] == [row]


def test_the_best_of_a_size_is_the_fastest_that_fits(asked):
    prediction = predict(asked)
    (best,) = best_of_sizes(asked, prediction)
    seconds = prediction.risk_adjusted_s[prediction.fits]
    assert prediction.risk_adjusted_s[best] == seconds.min()


def test_layouts_that_a_rehearsal_excludes_make_room_for_others():
    model = {"model": "llama3_8b", "shape": MODELS["llama3_8b"]}
    search = Search(**model, cluster="h100-80gb-dgx", clusters=CLUSTERS, gpus=8)
    predicted = recommend(search)
    asked: list[Layout] = []

    def too_much(points):
        asked.extend(point.layout for point in points)
        return [100.0 * GIB] * len(points)

    found = recommend(search, rehearse=too_much)
    assert len(found) == 3
    assert {one.facts["memory_from"] for one in found} == {"predicted"}
    assert not {one.layout for one in found} & {*asked}
    near = [one.layout for one in predicted if 0 < one.facts["memory_margin"] < 0.2]
    assert near
    assert {*near} <= {*asked}


def test_hopeless_points_are_refused_with_the_memory_term_by_term(points):
    found = points({"dp": 8, "zero_stage": 3}, {"dp": 1})
    prediction = predict(found)
    refused = memory_refusals(prediction)
    assert list(refused) == [1]
    assert prediction.likely_oom.tolist() == [False, True]
    assert "GiB is" in refused[1]
    assert "optimizer 75.3" in refused[1]  # 12 bytes x 6.74 billion parameters
