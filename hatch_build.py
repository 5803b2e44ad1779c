"""A wheel carries the workflow and all it reads; a checkout has them where they are edited."""

from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SHIPPED = ("Snakefile", "workflow/rules", "workflow/new", "reports", "config")


class Shipped(BuildHookInterface[Any]):
    """Puts them into scaling/shipped/, where `scaling.study.paths.SHIPPED` looks first."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add them to a wheel, and to no editable install."""
        if version == "standard":
            build_data["force_include"] |= {name: f"scaling/shipped/{name}" for name in SHIPPED}
