"""Compare two studies, or two periods of one: what changed, and whether beyond the noise."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb

from scaling.analyse.ties import NOISE_FLOOR
from scaling.errors import InputError
from scaling.study.paths import StudyPaths

_SIDE = """
select
    settings.model, settings.cluster, settings.study_kind, settings.seq_length,
    settings.kept_batch_size, settings.kept_choices, measured.world_size, measured.layout,
    measured.series,
    if(bool_or(outcome = 'ok'), 'ok', mode(outcome order by outcome)) as outcome,
    median(tokens_per_s) as rate, min(tokens_per_s_low) as low, max(tokens_per_s_high) as high,
    count(*) as runs, stack_fingerprint as stack
from read_parquet($measurements) as measured
join read_parquet($settings) as settings using (setting_id)
where measured.series in ('measured', 'extended') and not beside_measured
    and ($since is null or started_at >= $since) and ($until is null or started_at < $until)
group by all
"""
_JOINED = """
select
    model, cluster, study_kind, seq_length, kept_batch_size, kept_choices, world_size, layout,
    series,
    before.outcome as before_outcome, after.outcome as after_outcome,
    before.rate as before_tokens_per_s, after.rate as after_tokens_per_s,
    after.rate / before.rate as ratio,
    after.low / before.high as ratio_low,
    after.high / before.low as ratio_high,
    before.runs as before_runs, after.runs as after_runs,
    before.stack = after.stack as same_stack,
    case
        when before.outcome is null then 'new'
        when after.outcome is null then 'gone'
        when before.outcome != after.outcome then 'outcome changed'
        when ratio is null then 'failed both times'
        when ratio_low is null or ratio_high is null then 'noise unknown'
        when ratio_low > 1 and ratio > 1 + $floor then 'faster'
        when ratio_high < 1 and 1 / ratio > 1 + $floor then 'slower'
        else 'within noise'
    end as verdict
from before
full join after using (
    model, cluster, study_kind, seq_length, kept_batch_size, kept_choices, world_size, layout,
    series
)
qualify row_number() over (
    partition by
        model, cluster, study_kind, seq_length, kept_batch_size, kept_choices, world_size, layout,
        series
    order by
        ratio is null, same_stack desc nulls last, before_runs + after_runs desc nulls last,
        before.stack, after.stack
) = 1
order by model, cluster, world_size, ratio desc nulls last, layout, series
"""


@dataclass(frozen=True, slots=True)
class Side:
    """A tabulated study, or its rows that started at or after `since` and before `until` (UTC)."""

    study_dir: Path
    since: str | None = None
    until: str | None = None


def compare(before: Side, after: Side) -> list[dict[str, Any]]:
    """One record per layout, size and series of either side: what ran here, short steps included.

    `ratio` is throughput after over before. Its interval is the ratio of the opposite ends of the
    two intervals (95 %; extended 80 %; of single runs if nothing was repeated), so `faster` and
    `slower` mean that these do not overlap, and that the rates differ by more than runs do however
    narrow their intervals (`ties.NOISE_FLOOR`). `same_stack`: both sides ran on the same software
    and hardware. Of a side with several stacks the one is compared that both have, else the one
    with the most runs.

    Raises:
        InputError: a side is not tabulated, or by another version.
    """
    with duckdb.connect() as connection:
        for name, side in (("before", before), ("after", after)):
            named = {table: _table(side, table) for table in ("measurements", "settings")}
            try:
                connection.execute(
                    f"create temporary table {name} as {_SIDE}",
                    {**named, "since": side.since, "until": side.until},
                )
            except (duckdb.Error, UnicodeDecodeError) as error:
                reason = str(error).splitlines()[0]
                raise InputError(
                    f"{StudyPaths(side.study_dir).tables}: cannot be compared: {reason}"
                ) from error
        joined = connection.sql(_JOINED, params={"floor": NOISE_FLOOR})
        records: list[dict[str, Any]] = joined.to_arrow_table().to_pylist()
    return records


def _table(side: Side, name: str) -> str:
    path = StudyPaths(side.study_dir).table(name)
    if not path.exists():
        raise InputError(
            f"{path}: is missing; `scaling tabulate {shlex.quote(str(side.study_dir))}` writes it"
        )
    return str(path)
