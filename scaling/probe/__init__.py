"""Microbenchmarks of a cluster: the rates that its GPUs, memory and links really reach."""
