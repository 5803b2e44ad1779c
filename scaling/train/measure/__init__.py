"""Measuring a step: seconds, joules, bytes, and the profiler's trace."""
