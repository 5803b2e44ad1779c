"""Running a study: its plan, Snakemake, guided choice, progress, retries."""
