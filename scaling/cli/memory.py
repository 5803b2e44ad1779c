"""`scaling memory`: the exact bytes of a point's ranks, from the engine itself."""

from typing import Annotated

import typer

from scaling.errors import InputError

_STAGES = ("first", "middle", "last")


def memory(
    what: Annotated[
        str, typer.Argument(metavar="STUDY|POINT", help="A study, or a point's JSON file.")
    ],
    ranks: Annotated[
        str, typer.Option(help="Pipeline stages: first, middle, last; separated by commas.")
    ] = ",".join(_STAGES),
    as_json: Annotated[bool, typer.Option("--json", help="A line of JSON for each point.")] = False,
) -> None:
    """Count the bytes of a rank, phase by phase: the engine itself on tensors without numbers.

    No GPU is needed, for any number of ranks. What it cannot see: NCCL, kernels' workspaces,
    fragmentation, what a side stream holds longer.
    """
    from scaling.cli import memory_table

    stages = ranks.split(",")
    for stage in stages:
        if stage not in _STAGES:
            raise InputError(f"--ranks: {stage!r} is no stage; one of {', '.join(_STAGES)}")
    memory_table.show(what, stages, as_json=as_json)
