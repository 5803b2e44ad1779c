"""Logs of other trainers and benchmarks, read into rows and probes; a module a tool."""
