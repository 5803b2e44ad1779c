"""Which parallel layout trains fastest at each GPU count, and what one more GPU still buys."""

__version__ = "0.1.0"
