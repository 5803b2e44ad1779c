"""How much each mechanism of the step-time model contributes to its accuracy.

    python -m benchmarks.ablate FOLDER [--write]

Predicts the shipped rows and the tables of FOLDER from data sheets, with and without each
mechanism, and prints the difference of the mean relative error in points: as the known software,
and as if the software were unknown. `--write` puts the table into docs/prediction_accuracy.md.
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
    """How to turn a mechanism off.

    `start`: neutral values of parameters, or functions of the other parameters. `stack`: facts of
    the software to replace. `features`: features of layouts to replace. `code`: (module, name,
    replacement) to patch.
    """

    start: Mapping[str, float | Callable[[Start], float]] = dataclasses.field(default_factory=dict)
    stack: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    features: Mapping[str, float] = dataclasses.field(default_factory=dict)
    code: tuple[tuple[Any, str, Any], ...] = ()

    def of(self, points: Points) -> Points:
        """The same points without the mechanism."""
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
    """Zero seconds for each layout, whichever of `parts` are Features."""
    (f,) = (part for part in parts if isinstance(part, Features))
    return np.zeros(len(f))


def _equal(f: Features, _: object) -> Stages:
    each = f.num_layers / f.pp
    return Stages(each, each, each, f.pp > 1)


_HOST = dict.fromkeys(("host_layer_s", "host_collective_s", "host_softmax_s"), 1e-9)

# In the order in which a step meets them.
MECHANISMS: Mapping[str, Without] = {
    "GEMM edge effects": Without(start={"gemm_half_size": 0.0}),
    "flash speed by GPU generation": Without(features={"flash_gain": 1.0}),
    "FlashAttention 1 slower than 2": Without(
        start={"flash1_efficiency": lambda p: p["flash2_efficiency"]}
    ),
    "torch softmax slower than fused": Without(start={"math_passes": lambda p: p["fused_passes"]}),
    "unfused norms slower than fused": Without(
        start={"norm_passes": lambda p: p["norm_passes_fused"]}
    ),
    "norms and residuals": Without(start={"norm_passes": 0.0, "norm_passes_fused": 0.0}),
    "low-precision casts": Without(features={"cast_bytes": 0.0}),
    "passes over logits": Without(start={"logit_passes": 0.0}),
    "optimizer update": Without(code=((step, "optimizer_seconds", _none),)),
    "kernel launches by the host": Without(start={**_HOST, "host_transport_s": 0.0}),
    "extra launch cost over EFA": Without(start={"host_transport_s": 0.0}),
    "host and GPU phases within a layer": Without(start={"host_sharpness": 12.0}),
    "tp overlap": Without(start={"tp_exposed": 1.0}),
    "tp latency": Without(start={"tp_latency_s": 0.0}),
    "tp latency across nodes": Without(start={"tp_network_latency_s": 0.0}),
    "cp rings": Without(features={"ring": False}),
    "unequal pipeline stages": Without(code=((step, "stages_of", _equal),)),
    "messages between stages": Without(code=((communication, "_message", _none),)),
    "interleaved stages": Without(features={"virtual": 1.0}),
    "ring hop latency": Without(
        code=tuple((m, "ring_latency_s", lambda r: 0 * r.nodes) for m in (links, communication))
    ),
    "one gradient message per layer": Without(stack={"layer_messages": False}),
    "gradient overlap": Without(start={"dp_exposed": 1.0, "dp_exposed_inside": 1.0}),
    "ZeRO-3 gather overlap": Without(start={"zero3_exposed": 1.0}),
    "pipeline stalls over EFA": Without(code=((step, "expected_stall_s", _none),)),
    "stalls near full memory": Without(start={"stall_s": 0.0}),
    "slow-down per doubling of nodes": Without(code=((step, "_NODE_JITTER", 0.0),)),
    "constant per step": Without(start={"step_overhead_s": 0.0}),
    "grouped GEMM edge effects": Without(start={"expert_half_size": lambda p: p["gemm_half_size"]}),
    "grouped GEMM efficiency": Without(start={"expert_gemm_efficiency": 1.0}),
    "token permutation": Without(start={"expert_passes": 0.0}),
    "host waits for token counts": Without(start={"host_waits_s": 0.0}),
    "all-to-all overlap": Without(start={"ep_exposed": 1.0}),
    "one copy of a token per node": Without(stack={"tokens_once_a_node": False}),
}  # fmt: skip


def mape(points: Points, observed: Observed) -> float:
    """Mean of |predicted / measured - 1|."""
    return float(np.nanmean(np.abs(np.expm1(off(points, observed)))))


def worth(by_file: Mapping[str, pa.Table]) -> Iterator[list[str]]:
    """Rows of the table, header first."""
    yield [
        "without", "known software", "largest loss", "largest gain", "unknown software",
    ]  # fmt: skip
    read = []
    for name, table in by_file.items():
        for is_known, rows in ((True, table), (False, unnamed(table))):
            columns = Columns(rows, name)
            read.append((name, is_known, points_of(columns), observed_of(columns)))
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
    parser.add_argument("folder", type=Path, help="CSV tables")
    parser.add_argument("--write", action="store_true", help="into docs/prediction_accuracy.md")
    asked = parser.parse_args()
    text = markdown_of(list(worth(tables(asked.folder))))
    if asked.write:
        TABLES.write(text)
    else:
        print(text)


if __name__ == "__main__":
    main()
