"""`scaling model`: what was understood of a model's config.json."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scaling.cli.options import AsJson, print_json
from scaling.errors import InputError, did_you_mean, printable, shortened

if TYPE_CHECKING:
    from scaling.study.config_json import ConfigModel

ModelOption = Annotated[
    str,
    typer.Option(help="A model of config/models.yaml, a config.json, its folder, a cached name."),
]


def model(
    path: Annotated[
        str,
        typer.Argument(
            metavar="PATH",
            help="A config.json, a folder that holds one, a name in the local hub cache or in "
            "config/models.yaml.",
        ),
    ],
    seq_length: Annotated[
        int, typer.Option(min=1, max=10_000_000, help="Tokens per sequence, for the FLOPs.")
    ] = 4096,
    as_json: AsJson = False,
) -> None:
    """Show what is understood of a model: shape, parameters, FLOPs, what is left out and why."""
    from scaling.layout.engines import engine_refusals
    from scaling.layout.layout import Layout
    from scaling.layout.shapes import matmul_flops_per_token, model_flops_per_token
    from scaling.study.ids import stored_fields

    found = model_of(path, said="PATH")
    shape = found.shape
    facts: dict[str, Any] = {
        "name": found.name,
        "path": str(found.path),
        "shape": stored_fields(shape),
        "total_params": shape.total_params,
        "active_params": shape.active_params,
        "seq_length": seq_length,
        "model_flops_per_token": model_flops_per_token(shape, seq_length),
        "matmul_flops_per_token": matmul_flops_per_token(shape, seq_length),
        "left_out": list(found.left_out),
        "predict_only": list(engine_refusals(shape, Layout(seq_length=seq_length))),
    }
    if as_json:
        print_json(facts)
        return
    sizes = ", ".join(f"{name} {str(value).lower()}" for name, value in facts["shape"].items())
    lines = [
        f"{found.name}: {shape.total_params:,} parameters, {shape.active_params:,} for one token",
        sizes,
        f"{facts['model_flops_per_token']:.4g} FLOPs a token at {seq_length:,} tokens a sequence "
        f"({facts['matmul_flops_per_token']:.4g} of matrix products)",
        *(f"left out: {what}" for what in found.left_out),
        *(f"predict only: {why}" for why in facts["predict_only"]),
    ]
    for line in lines:
        typer.echo(printable(line))


def model_of(text: str, said: str = "--model") -> "ConfigModel":
    """The model that a text of the command line means.

    Raises:
        InputError: it means none, or one that cannot be counted.
    """
    from scaling.predict.read.clusters import config_file
    from scaling.study.config_json import ConfigModel, model_named
    from scaling.study.load import load_models

    file = config_file("models.yaml")
    models = load_models(file) if file else {}
    if (found := model_named(text, models, Path(), said)) is not None:
        return found
    if file is None or text not in models:
        hint = did_you_mean(text[:60], models)
        raise InputError(
            f"{said} {shortened(text)}: not in config/models.yaml, and no config.json: {hint}"
        )
    return ConfigModel(path=file, name=text, shape=models[text], left_out=())
