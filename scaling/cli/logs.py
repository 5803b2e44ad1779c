"""`scaling convert`: logs of other tools as tables in the project's names."""

from pathlib import Path
from typing import Annotated

import typer

from scaling.errors import InputError, did_you_mean, shortened


def convert(
    logs: Annotated[list[Path], typer.Argument(metavar="LOG... OUT", help="Logs, then the table.")],
    tool: Annotated[str, typer.Option(help="megatron, nemo, mlperf, torchtitan or nccl-tests.")],
    cluster: Annotated[str, typer.Option(help="A cluster of config/clusters.yaml, or a GPU.")],
    column: Annotated[
        list[str] | None, typer.Option(help="What the logs do not say: NAME=VALUE, many times.")
    ] = None,
) -> None:
    """Read logs of other tools into rows, or nccl-tests into probes, as a Parquet table."""
    from scaling.foreign.logs.tools import TOOLS, table_of
    from scaling.foreign.reading import writing
    from scaling.record.files import write_table

    if tool not in TOOLS:
        raise InputError(f"--tool {shortened(tool)}: {did_you_mean(tool[:60], TOOLS)}")
    *sources, out = logs
    if not sources:
        raise InputError(f"{out}: give at least one log, and last the table to write")
    stated = {"cluster": cluster}
    for pair in column or []:
        name, equals, value = pair.partition("=")
        if not equals:
            raise InputError(f"--column {shortened(pair)}: give NAME=VALUE")
        stated[name] = value
    table = table_of(sources, tool, stated)
    with writing(out):
        write_table(out, table)
    kind = "probes" if tool == "nccl-tests" else "rows"
    typer.echo(f"{len(sources)} logs: {table.num_rows} {kind} -> {out}")
