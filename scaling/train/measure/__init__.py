"""Seconds, joules, bytes: what a step is measured by."""
