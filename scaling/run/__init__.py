"""Run a study: its plan, Snakemake, choices made meanwhile, progress, retries."""
