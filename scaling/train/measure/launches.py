"""Every call that starts a communication leaves its kind and its axis in the profiler's trace."""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _resolve_process_group
from torch.autograd.profiler import record_function

from scaling.layout.layout import Layout
from scaling.train.measure.window import LAUNCH
from scaling.train.parallel.context import ring_module
from scaling.train.parallel.groups import EP, Place

# How names of calls begin, underscores left out, of a process group and of the operators that the
# compiler makes of them; what follows differs between torch's versions.
_KINDS = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "send": "send_recv",
    "recv": "send_recv",
    "broadcast": "broadcast",
    "reduce": "",
    "barrier": "",
    "endcoalescing": "",  # NCCL launches here what was queued since _start_coalescing
}
_OPERATORS = "_c10d_functional"
_OUTERMOST_FIRST = ("pp", "dp", "cp", "tp")


def axis_of(ranks: list[int], layout: Layout) -> str | None:
    """The degree that this group serves, None for a group of one rank.

    A group that spans several (gradients over dp and cp, a norm over everything) is named for the
    outermost of them.
    """
    places = [Place.of(rank, layout) for rank in ranks]
    for axis in _OUTERMOST_FIRST:
        if len({getattr(place, f"{axis}_rank") for place in places}) > 1:
            return axis
    return None


def collective_kinds(names: Iterable[str]) -> dict[str, str]:
    """The kind of each name that is a call's; "" where it is a collective of no kind we tell."""
    begins = {name: name.replace("_", "") for name in names}
    return {
        name: next(kind for key, kind in _KINDS.items() if begin.startswith(key))
        for name, begin in begins.items()
        if begin.startswith(tuple(_KINDS))
    }


@contextlib.contextmanager
def annotate_launches(layout: Layout) -> Iterator[None]:
    """Within it every communication is annotated where it is started.

    Eager code, the engine's included, ends in methods of ProcessGroup, compiled code in operators.
    """
    axes: dict[str, str | None] = {}

    def annotation(group: Any, kind: str) -> record_function:
        resolved = group if isinstance(group, dist.ProcessGroup) else _resolve_process_group(group)
        name = resolved.group_name
        if name not in axes:
            ranks = dist.get_process_group_ranks(resolved)
            axes[name] = "ep" if resolved.group_desc == EP else axis_of(ranks, layout)
        return record_function(f"{LAUNCH}|{kind}|{axes[name] or ''}")

    def launching(owner: Any, name: str, kind: str, group_of: Callable[[Any], Any]) -> Any:
        getattr(owner, name)  # an operator's overload is made when it is first asked for
        kept = vars(owner)[name]  # as it lies there: what a class hands out would not bind again

        def launch(*given: Any, **named: Any) -> Any:
            with annotation(group_of(given), kind):
                return kept(*given, **named)

        return mock.patch.object(owner, name, launch)

    # operators reach the group without Python, and compiled code looks each up when it runs; the
    # last argument says which group
    operators = getattr(torch.ops, _OPERATORS)
    compiled = (
        name.partition("::")[2]
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith(f"{_OPERATORS}::")
    )
    # a ring turns past both of them; torch's must be there before an operator is replaced
    rotater = ring_module()._AllToAllRotater if layout.cp_style == "ring" else None
    with contextlib.ExitStack() as undone:
        for name, kind in collective_kinds(vars(dist.ProcessGroup)).items():
            undone.enter_context(launching(dist.ProcessGroup, name, kind, lambda given: given[0]))
        for name, kind in collective_kinds(compiled).items():
            operator = getattr(operators, name)
            undone.enter_context(launching(operator, "default", kind, lambda given: given[-1]))
        if rotater is not None:
            undone.enter_context(
                launching(rotater, "exchange_buffers", "all_to_all", lambda given: given[0]._pg)
            )
        yield
