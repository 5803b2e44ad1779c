"""Bytes and seconds of a layout: the formulas."""
