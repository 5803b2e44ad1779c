"""Annotate every call that starts a communication with its kind and axis, for the profiler."""

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

# Kinds by how names begin, without underscores: of methods of a process group, and of the operators
# that compiled code calls. The rest of a name differs between versions of torch.
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
    "endcoalescing": "",  # NCCL launches here all that was queued since _start_coalescing
}
_OPERATORS = "_c10d_functional"
_OUTERMOST_FIRST = ("pp", "dp", "cp", "tp")


def axis_of(ranks: list[int], layout: Layout) -> str | None:
    """The parallel axis along which this group's ranks differ, None for a group of one rank.

    Along several axes (gradients over dp and cp, a norm over all ranks) it is the outermost.
    """
    places = [Place.of(rank, layout) for rank in ranks]
    for axis in _OUTERMOST_FIRST:
        if len({getattr(place, f"{axis}_rank") for place in places}) > 1:
            return axis
    return None


def collective_kinds(names: Iterable[str]) -> dict[str, str]:
    """The kind of each name that belongs to a communication; "" for kinds not separated."""
    begins = {name: name.replace("_", "") for name in names}
    return {
        name: next(kind for key, kind in _KINDS.items() if begin.startswith(key))
        for name, begin in begins.items()
        if begin.startswith(tuple(_KINDS))
    }


@contextlib.contextmanager
def annotate_launches(layout: Layout) -> Iterator[None]:
    """While active, annotate every communication where it is started.

    Eager code, the engine's included, ends in methods of ProcessGroup; compiled code in operators.
    """
    axes: dict[str, str | None] = {}

    def annotation(group: Any, kind: str) -> record_function:
        resolved = group if isinstance(group, dist.ProcessGroup) else _resolve_process_group(group)
        name = resolved.group_name
        if name not in axes:
            ranks = dist.get_process_group_ranks(resolved)
            axes[name] = "ep" if resolved.group_desc == EP else axis_of(ranks, layout)
        return record_function(f"{LAUNCH}|{kind}|{axes[name] or ''}")

    def patch(owner: Any, name: str, kind: str, group_of: Callable[[Any], Any]) -> Any:
        getattr(owner, name)  # an operator's overload is made when it is first asked for
        original = vars(owner)[name]  # unbound: getattr of a class would not bind to self again

        def launch(*args: Any, **kwargs: Any) -> Any:
            with annotation(group_of(args), kind):
                return original(*args, **kwargs)

        return mock.patch.object(owner, name, launch)

    # Operators reach the group without Python, and compiled code looks each up when it runs. Their
    # last argument is the group.
    operators = getattr(torch.ops, _OPERATORS)
    compiled = (
        name.partition("::")[2]
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith(f"{_OPERATORS}::")
    )
    # A ring's exchanges take neither way. torch's module must be imported before an operator is
    # patched.
    rotater = ring_module()._AllToAllRotater if layout.cp_style == "ring" else None
    with contextlib.ExitStack() as stack:
        for name, kind in collective_kinds(vars(dist.ProcessGroup)).items():
            stack.enter_context(patch(dist.ProcessGroup, name, kind, lambda args: args[0]))
        for name, kind in collective_kinds(compiled).items():
            operator = getattr(operators, name)
            stack.enter_context(patch(operator, "default", kind, lambda args: args[-1]))
        if rotater is not None:
            stack.enter_context(
                patch(rotater, "exchange_buffers", "all_to_all", lambda args: args[0]._pg)
            )
        yield
