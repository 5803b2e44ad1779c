"""Arguments and options that several verbs have, and the JSON that they print."""

import json
from pathlib import Path
from typing import Annotated

import typer

StudyName = Annotated[
    str, typer.Argument(metavar="STUDY", help="A name in config/studies, or a path to its YAML.")
]
StudyDir = Annotated[
    Path, typer.Argument(metavar="STUDY_DIR", help="The study's results, e.g. results/quickstart.")
]
Mode = Annotated[
    str | None, typer.Option(help="measure or predict, instead of what the study says.")
]
ClusterName = Annotated[
    str | None, typer.Option(help="One of config/clusters.yaml, instead of the study's.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def print_json(value: object) -> None:
    """Print it for scripts; what is not known is null."""
    typer.echo(json.dumps(value, indent=1, allow_nan=False))
