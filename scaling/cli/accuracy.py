"""`scaling validate`: the accuracy of predictions. Heavy imports stay inside the functions."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scaling.cli.options import AsJson, percent, print_json, print_table
from scaling.cli.prediction import catalogues, print_assumptions, print_remark
from scaling.errors import printable

if TYPE_CHECKING:
    from scaling.predict.fit.validation import Validation


def validate(
    rows: Annotated[
        Path,
        typer.Argument(
            metavar="ROWS", help="Measured rows: CSV, JSON, Parquet, or a rows/ folder."
        ),
    ],
    calibrate_where: Annotated[
        str | None, typer.Option(help="SQL condition: rows to calibrate on; without it none.")
    ] = None,
    test_where: Annotated[
        str | None, typer.Option(help="SQL condition: rows to test on; without it all others.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Calibrate on some of the rows, and report the prediction errors on the others."""
    from scaling.importing.reader import read_rows
    from scaling.predict.fit.validation import trial

    models, clusters = catalogues()
    table = read_rows(rows)
    print_remark(table)
    validation = trial(
        table,
        calibrate_where=calibrate_where,
        test_where=test_where,
        models=models,
        clusters=clusters,
    )
    if as_json:
        print_json(validation.to_dict())
    else:
        _show(validation)


def _show(trial: "Validation") -> None:
    names = ("rows", "MAPE", "median", "max", "RMS", "bias", "rank", "regret", "max", "covered")
    heads = (
        "software",
        "model",
        "cluster",
        "GPUs",
        *names,
        "fit/OOM accuracy",
        "false fits",
        "false OOM",
    )
    whole: dict[str, str | int] = {
        "framework": "all",
        "model": "",
        "cluster": "",
        "world_size": "",
    }
    body = []
    for key, scores in [*trial.groups, (whole, trial.overall)]:
        s, m = scores.step_time, scores.memory
        correlation = s["rank_correlation"]
        body.append(
            [
                *(key[name] for name in whole),
                f"{s['rows']:.0f}",
                *(percent(s[name]) for name in ("mape", "median_ape", "max_ape", "rms", "bias")),
                "–" if correlation is None else f"{correlation:.2f}",
                percent(scores.regret["mean"]),
                percent(scores.regret["max"]),
                percent(scores.coverage_80, 0),
                *(percent(m[n]) for n in ("balanced_accuracy", "false_fit_rate", "false_oom_rate")),
            ]
        )
    print_table(heads, body)
    m = trial.overall.memory
    typer.echo(
        f"ran: {m['ran_fits']} predicted to fit, {m['ran_called_oom']} out of memory; "
        f"out of memory: {m['oom_called_oom']} predicted so, {m['oom_called_fit']} to fit"
    )
    typer.echo(f"calibrated on {trial.calibrated_rows} rows, tested on {trial.tested_rows}")
    for note in trial.notes:
        typer.echo(f"note: {printable(note)}")
    print_assumptions(trial.assumptions)
