"""Microbenchmarks of a cluster: what its GPUs, its memory and its links really reach."""
