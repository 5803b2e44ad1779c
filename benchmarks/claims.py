"""How often the intervals and ties of docs/method.md are right, on simulated studies.

    python -m benchmarks.claims

Each study has three sizes with two equal layouts each, so six layouts; SQL of the project makes its
intervals and its ranking. Prints a Markdown table: the share of intervals that hold the true rate,
and of pairs of equal layouts that are told apart. Half a minute on one core.
"""

from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa

from scaling.analyse.catalogue import set_variables

SQL = Path(__file__).parents[1] / "reports" / "sql"
STUDIES, SIZES, TOKENS = 2000, 3, 1000.0
STEP_SIGMA = 0.0015  # error of the median step of one run, as its own interval states it
# columns of measurements that have no part in the claim
_UNUSED = (
    "dp",
    "global_batch_size",
    "gradient_accumulation_steps",
    "model_flop_per_s_per_gpu",
    "hardware_flop_per_s_per_gpu",
    "mfu",
    "hfu",
    "peak_memory_bytes",
    "predicted_memory_bytes",
    "memory_meter",
    "energy_j",
    "mean_power_w",
    "predicted_own_sigma",
    "predicted_size_sigma",
    "compute_s",
    "comm_s",
    "exposed_comm_s",
    "idle_s",
)


def simulated(sigma: float, spread: float, repeats: int, random: np.random.Generator) -> pa.Table:
    """Runs of layouts whose step takes one second.

    Args:
        sigma: standard deviation of ln time between runs of a layout.
        spread: standard deviation of ln sigma between layouts.
        repeats: runs of each layout.
        random: draws them.
    """
    shape = (STUDIES, SIZES, 2, repeats)
    study, size, layout, _ = (index.ravel() for index in np.indices(shape))
    sigmas = sigma * np.exp(spread * random.normal(size=(*shape[:3], 1)))
    errors = np.hypot(sigmas, STEP_SIGMA) * random.normal(size=shape)
    seconds, half = np.exp(errors.ravel()), np.exp(1.96 * STEP_SIGMA)
    return pa.table(
        {
            "setting_id": study, "world_size": 2**size, "layout": layout.astype(str),
            "series": ["measured"] * len(study), "stack_fingerprint": ["one"] * len(study),
            "outcome": ["ok"] * len(study), "tokens_per_step": [TOKENS] * len(study),
            "step_time_s": seconds, "step_time_low_s": seconds / half,
            "step_time_high_s": seconds * half, "tokens_per_s": TOKENS / seconds,
            "tokens_per_s_low": TOKENS / seconds / half,
            "tokens_per_s_high": TOKENS / seconds * half,
            **{name: pa.nulls(len(study), pa.float64()) for name in _UNUSED},
        }
    )  # fmt: skip


def rates(measurements: pa.Table) -> tuple[float, float]:
    """Of 100 intervals how many hold the truth, and of 100 equal pairs how many are told apart."""
    with duckdb.connect() as connection:
        set_variables(connection)
        connection.register("measurements", measurements)
        for name in ("inner/pooled_runs", "noise", "ranking"):
            if name == "ranking":
                connection.execute(
                    "create table layouts as select * exclude (repeat_sigma), "
                    "layout as layout_name, layout as layout_lines from pooled_runs"
                )
            query = (SQL / f"{name}.sql").read_text(encoding="utf-8")
            connection.execute(f"create table {Path(name).name} as {query}")
        connection.execute("create table found as from ranking")
        held = "tokens_per_s_low <= $rate and $rate <= tokens_per_s_high"
        query = f"select 100 * avg(({held})::int) from found"
        ((holds,),) = connection.execute(query, {"rate": TOKENS}).fetchall()
        query = "select 100 * avg((not within_noise)::int) from found where position = 2"
        ((apart,),) = connection.execute(query).fetchall()
    return float(holds), float(apart)


def main() -> None:
    random = np.random.default_rng(0)
    print("| runs differ by | noises differ by | repeats | intervals hold | told apart |")
    print("|---|---|---|---|---|")
    for sigma in (0.007, 0.014, 0.03):
        for spread in (0.0, 0.5, 1.0):
            for repeats in (1, 2, 3, 5):
                holds, apart = rates(simulated(sigma, spread, repeats, random))
                print(
                    f"| {100 * sigma:g} % | x{np.exp(spread):.1f} | {repeats} "
                    f"| {holds:.0f} of 100 | {apart:.0f} of 100 |"
                )


if __name__ == "__main__":
    main()
