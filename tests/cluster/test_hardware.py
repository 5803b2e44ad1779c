"""The catalogue: one entry says all that any formula asks of a GPU."""

import dataclasses

import pytest

from scaling.cluster import hardware
from scaling.cluster.hardware import GPUS, Cluster
from scaling.layout.layout import Layout
from scaling.predict.cost.model import predict
from scaling.predict.read.clusters import USABLE_OF_CAPACITY, site_clusters
from scaling.predict.read.points import points_of_layouts
from tests.shipped import MODELS

DEVICES = [name for name, gpu in GPUS.items() if gpu.vendor != "cpu"]


def predicted(cluster, clusters=None, **layout):
    asked = Layout(**{"dp": 4, "zero_stage": 3, "seq_length": 2048, "precision": "fp16"} | layout)
    points = points_of_layouts(
        [asked], [MODELS["llama2_7b"]], clusters or {}, models=["llama2_7b"], clusters=[cluster]
    )
    assert points.note.tolist() == [None]
    return float(predict(points).step_time_s[0])


@pytest.mark.parametrize("name", DEVICES)
def test_every_gpu_of_the_catalogue_predicts_at_each_of_its_precisions(name):
    for precision in GPUS[name].peaks:
        assert 0 < predicted(name, precision=precision) < 100


@pytest.mark.parametrize("name", DEVICES)
def test_entries_state_their_source_and_stay_in_physical_bounds(name):
    gpu = GPUS[name]
    assert gpu.name == name
    assert "data sheet" in gpu.source
    assert gpu.node is not None
    assert gpu.node.source
    assert 0.5 < gpu.sustained_of_peak <= 1
    assert all(0.3 < gpu.sustained(one) / gpu.peaks[one] <= 1 for one in gpu.peaks)
    rates = [gpu.peaks[one] for one in ("fp32", "fp16", "fp8", "nvfp4") if one in gpu.peaks]
    assert rates == sorted(rates)  # fewer bits are never slower
    assert gpu.peaks.get("bf16") in (None, gpu.peaks.get("fp16"))
    assert 30 * 2**30 < gpu.memory_bytes < 300 * 2**30
    assert gpu.link_bytes_per_s < gpu.hbm_bytes_per_s


@pytest.mark.parametrize(
    ("name", "gib"), [("a40-48gb", 44.4), ("l40s-48gb", 44.4), ("b300-288gb", 267.7)]
)
def test_a_board_offers_what_its_driver_shows_and_not_what_it_is_sold_as(name, gib):
    assert GPUS[name].memory_bytes * USABLE_OF_CAPACITY / 2**30 == pytest.approx(gib, rel=0.01)


def test_a_gpu_that_is_registered_in_one_place_predicts_by_its_own_numbers(monkeypatch):
    plain = dataclasses.replace(GPUS["a100-80gb"], name="newchip-96gb", generation=None)
    monkeypatch.setitem(hardware.GPUS, plain.name, plain)
    assert predicted(plain.name) == predicted("a100-80gb")
    faster = {"fp16": 4 * plain.peaks["fp16"]}
    monkeypatch.setitem(hardware.GPUS, plain.name, dataclasses.replace(plain, peaks=faster))
    assert predicted(plain.name) < predicted("a100-80gb")
    here = Cluster(gpu=plain.name, gpus_per_node=4, nodes=2, source="test")
    assert predicted("here", {"here": here}) == predicted(plain.name)


@pytest.mark.parametrize(("name", "like"), [("mi300x-192gb", "hopper"), ("b200-180gb", "ampere")])
def test_a_generation_has_its_own_flash_kernels(monkeypatch, name, like):
    plain = predicted(name)
    other = dataclasses.replace(GPUS[name], generation=like)
    monkeypatch.setitem(hardware.GPUS, name, other)
    slower_there = like == "hopper"  # FlashAttention-2 is slow on Hopper, and on Blackwell
    assert (predicted(name) > plain) == slower_there


def test_a_measured_bus_bandwidth_of_a_cluster_file_reaches_the_prediction():
    clusters = site_clusters()
    measured = clusters["h100-80gb-efa"]
    assert measured.bus_bytes_per_s[64] == 33e9
    assert measured.lossy_transport
    layout = {"dp": 64, "zero_stage": 0}
    rates = {nodes: rate / 4 for nodes, rate in measured.bus_bytes_per_s.items()}
    slower = dataclasses.replace(measured, bus_bytes_per_s=rates)
    there = predicted("x", {"x": slower}, **layout)
    assert there > predicted("h100-80gb-efa", clusters, **layout)
