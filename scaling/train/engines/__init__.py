"""The engines that train. scaling/layout/engines.py lists them by name."""
