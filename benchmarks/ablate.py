"""What each mechanism of the predicted step is worth: how wrong predictions are without it.

    python -m benchmarks.ablate FOLDER [--write]

From data sheets alone, on the published rows that come along and on the tables of FOLDER in this
project's names: the mean relative error of each table without the mechanism less that with it, in
points, with the table's software as it is known and as if it were unheard of. `--write` puts the
table into docs/prediction_accuracy.md.
"""

import argparse
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa

from benchmarks.accuracy import Marked, markdown_of
from benchmarks.held_out import off, tables, unnamed
from scaling.foreign.columns import Columns
from scaling.predict.cost import communication, links, step
from scaling.predict.cost.stages import Stages
from scaling.predict.read.features import Features, Group, Points
from scaling.predict.read.observed import Observed, observed_of
from scaling.predict.read.points import points_of

TABLES = Marked("<!-- what mechanisms are worth -->", "<!-- end of what they are worth -->")

Start = Mapping[str, float]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Without:
    """How a mechanism is turned off.

    `start`: parameters at neutral values, numbers or made from the others. `stack`: facts of
    software that are not known. `features`: of the layouts. `code`: (module, name) and what stands
    in its place.
    """

    start: Mapping[str, float | Callable[[Start], float]] = dataclasses.field(default_factory=dict)
    stack: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    features: Mapping[str, float] = dataclasses.field(default_factory=dict)
    code: tuple[tuple[Any, str, Any], ...] = ()

    def of(self, points: Points) -> Points:
        """The same points of software and layouts without it."""
        return dataclasses.replace(points, groups=tuple(map(self._of_group, points.groups)))

    def _of_group(self, group: Group) -> Group:
        neutral = {
            name: value(group.start) if callable(value) else value
            for name, value in self.start.items()
        }
        arrays: dict[str, Any] = {
            name: np.full(len(group.features), value) for name, value in self.features.items()
        }
        return dataclasses.replace(
            group,
            start={**group.start, **neutral},
            stack=dataclasses.replace(group.stack, **self.stack),
            features=dataclasses.replace(group.features, **arrays),
        )


def _none(*parts: Any, **_: Any) -> np.ndarray:
    """No seconds, of as many layouts as the features among `parts`."""
    (f,) = (part for part in parts if isinstance(part, Features))
    return np.zeros(len(f))


def _equal(f: Features, _: object) -> Stages:
    each = f.num_layers / f.pp
    return Stages(each, each, each, f.pp > 1)


_HOST = dict.fromkeys(("host_layer_s", "host_collective_s", "host_softmax_s"), 1e-9)

# In the order in which a step meets them.
MECHANISMS: Mapping[str, Without] = {
    "a GEMM's edges": Without(start={"gemm_half_size": 0.0}),
    "flash kernels by generation": Without(features={"flash_gain": 1.0}),
    "FlashAttention 1 apart": Without(
        start={"flash1_efficiency": lambda p: p["flash2_efficiency"]}
    ),
    "torch's softmax apart": Without(start={"math_passes": lambda p: p["fused_passes"]}),
    "fused norms apart": Without(start={"norm_passes": lambda p: p["norm_passes_fused"]}),
    "norms": Without(start={"norm_passes": 0.0, "norm_passes_fused": 0.0}),
    "casts of low precision": Without(features={"cast_bytes": 0.0}),
    "passes over logits": Without(start={"logit_passes": 0.0}),
    "optimizer": Without(code=((step, "optimizer_seconds", lambda _, held: 0 * held),)),
    "host's launches": Without(start={**_HOST, "host_transport_s": 0.0}),
    "host over EFA": Without(start={"host_transport_s": 0.0}),
    "layers alternate between host and GPU": Without(start={"host_sharpness": 12.0}),
    "tp hidden by software": Without(start={"tp_exposed": 1.0}),
    "tp's latency": Without(start={"tp_latency_s": 0.0}),
    "tp's latency over nodes": Without(start={"tp_network_latency_s": 0.0}),
    "rings of cp": Without(features={"ring": False}),
    "unequal stages": Without(code=((step, "stages_of", _equal),)),
    "messages between stages": Without(code=((communication, "_message", _none),)),
    "interleaving": Without(features={"virtual": 1.0}),
    "hops of rings": Without(
        code=tuple((m, "ring_latency_s", lambda r: 0 * r.nodes) for m in (links, communication))
    ),
    "messages a layer": Without(stack={"layer_messages": False}),
    "gradients hidden": Without(start={"dp_exposed": 1.0, "dp_exposed_inside": 1.0}),
    "ZeRO-3's gathers hidden": Without(start={"zero3_exposed": 1.0}),
    "stalls of pipelines over EFA": Without(code=((step, "expected_stall_s", _none),)),
    "stalls near full memory": Without(start={"stall_s": 0.0}),
    "slow-down by nodes": Without(code=((step, "_NODE_JITTER", 0.0),)),
    "seconds a step": Without(start={"step_overhead_s": 0.0}),
    "grouped GEMMs' edges": Without(start={"expert_half_size": lambda p: p["gemm_half_size"]}),
    "grouped GEMMs' efficiency": Without(start={"expert_gemm_efficiency": 1.0}),
    "permuting copies of tokens": Without(start={"expert_passes": 0.0}),
    "host waits for experts' tokens": Without(start={"host_waits_s": 0.0}),
    "all-to-alls hidden": Without(start={"ep_exposed": 1.0}),
    "a token once a node": Without(stack={"tokens_once_a_node": False}),
}  # fmt: skip


def mape(points: Points, observed: Observed) -> float:
    """Mean of |predicted / measured - 1|."""
    return float(np.nanmean(np.abs(np.expm1(off(points, observed)))))


def worth(by_file: Mapping[str, pa.Table]) -> Iterator[list[str]]:
    """Each mechanism's row of the table, heads first."""
    yield [
        "without", "known software", "the table that loses most", "that gains most", "unheard of",
    ]  # fmt: skip
    read = []
    for name, table in by_file.items():
        for known, rows in ((True, table), (False, unnamed(table))):
            columns = Columns(rows, name)
            read.append((name, known, points_of(columns), observed_of(columns)))
    before = [mape(points, observed) for _, _, points, observed in read]
    for mechanism, without in MECHANISMS.items():
        with ExitStack() as patched:
            for place in without.code:
                patched.enter_context(mock.patch.object(*place))
            after = [mape(without.of(points), observed) for _, _, points, observed in read]
        change = 100 * (np.array(after) - np.array(before))
        known = {
            name: c for (name, is_known, _, _), c in zip(read, change, strict=True) if is_known
        }
        unheard = [c for (_, is_known, _, _), c in zip(read, change, strict=True) if not is_known]
        ends = [pick(known, key=lambda name: known[name]) for pick in (max, min)]
        yield [
            mechanism,
            f"{np.mean(list(known.values())):+.1f}",
            *(f"{known[end]:+.1f} {end}" if abs(known[end]) >= 0.05 else "–" for end in ends),
            f"{np.mean(unheard):+.1f}",
        ]


def main() -> None:
    """Print the table, or write it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="tables of others, as CSV")
    parser.add_argument("--write", action="store_true", help="into docs/prediction_accuracy.md")
    asked = parser.parse_args()
    text = markdown_of(list(worth(tables(asked.folder))))
    if asked.write:
        TABLES.write(text)
    else:
        print(text)


if __name__ == "__main__":
    main()
