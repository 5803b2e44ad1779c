"""Snakemake jobs become submitit jobs."""
