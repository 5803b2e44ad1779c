"""Vega, Vega-Lite and vega-embed as one JavaScript module, which every page holds once."""

import functools
import subprocess
import sys

import altair as alt

VEGA_LITE = alt.SCHEMA_VERSION.removeprefix("v").rsplit(".", 1)[0]

_PROGRAM = """
import sys, vl_convert
sys.stdout.write(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", sys.argv[1]))
"""


@functools.cache
def bundle() -> str:
    """The module's text.

    Bundling takes more than a second and holds Python's lock all the time, so it runs in a process
    of its own: a thread that waits here leaves the caller free to read tables and build charts.
    """
    bundled = subprocess.run(
        [sys.executable, "-c", _PROGRAM, VEGA_LITE],
        check=True, stdout=subprocess.PIPE, encoding="utf-8",
    )  # fmt: skip
    return bundled.stdout
