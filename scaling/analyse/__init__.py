"""Rows to tables, returns and advice: what the measurements say."""
