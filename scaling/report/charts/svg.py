"""Charts drawn as SVG when the page is made, for the page and as files."""

import functools
import hashlib
import json
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from pathlib import Path

import altair as alt
import vl_convert
from altair.utils.schemapi import debug_mode

from scaling.record.files import write_bytes, write_text
from scaling.report.charts import marks
from scaling.report.charts.charts import CHARTS
from scaling.report.charts.marks import Drawing
from scaling.report.charts.palette import COLOURS, CONFIG

VEGA_LITE = alt.SCHEMA_VERSION.removeprefix("v").rsplit(".", 1)[0]
_LONGEST_NAME = 120  # of the 255 that a file system allows
_SVG = "{http://www.w3.org/2000/svg}"
ElementTree.register_namespace("", _SVG[1:-1])
# What Vega writes and a browser assumes, or what the page says itself.
_UNSAID = {
    "class", "font-family", "pointer-events", "aria-roledescription", "role", "display",
    "aria-hidden", "stroke-miterlimit", "version",
}  # fmt: skip
_ASSUMED = {
    "opacity": "1", "stroke-width": "1", "stroke-opacity": "1", "fill-opacity": "1",
    "font-weight": "400", "x2": "0", "y2": "0", "transform": "translate(0,0)",
}  # fmt: skip
_PLACES = {"d", "transform", "x", "y", "x2", "y2", "width", "height", "viewBox"}
_OWN = {*_PLACES, "opacity"}  # not inherited from a group
_LABEL = "aria-label"
_OF_GUIDES = ("X-axis", "Y-axis", "Symbol legend")  # labels that say nothing of a mark
_LONG = re.compile(r"\d+\.\d{2,}")


@functools.cache
def specifications() -> dict[str, str]:
    """By chart its Vega-Lite as JSON, without rows. Building takes a tenth of a second for each.

    The tests validate them, which would take longer.
    """
    texts = {}
    for name, chart in CHARTS.items():
        with debug_mode(False):
            specification = chart.build().to_dict(validate=False)
        specification["config"] = CONFIG
        texts[name] = json.dumps(specification)
    return texts


def draw(name: str, drawing: Drawing, words: Mapping[str, str]) -> str:
    """A chart as SVG whose colours are the page's variables."""
    specification = json.loads(fill_words(specifications()[name], words))
    specification["datasets"] = drawing.rows
    # a layer without rows would still ask for a legend, which without entries has no size
    shared = specification.get("data")  # where all layers read the same list
    specification["layer"] = [
        layer
        for layer in specification["layer"]
        if drawing.rows[(layer.get("data") or shared)["name"]]
    ]
    values = {"sizes": drawing.sizes, "parts": drawing.parts}
    for parameter in specification["params"]:
        parameter["value"] = values[parameter["name"]]
    return shrunk(str(vl_convert.vegalite_to_svg(specification, vl_version=VEGA_LITE)))


def shrunk(svg: str) -> str:
    """An SVG that looks the same, of a third of the size, with places to a tenth of a pixel."""
    root = ElementTree.fromstring(svg)
    for element in root.iter():
        said = element.attrib
        for name, value in [*said.items()]:
            if name in _PLACES:
                said[name] = value = _LONG.sub(_to_a_tenth, value)
            of_guide = name == _LABEL and value.startswith(_OF_GUIDES)
            if name in _UNSAID or _ASSUMED.get(name) == value or of_guide:
                del said[name]
    _join(root)
    return ElementTree.tostring(root, encoding="unicode").replace(" />", "/>")


def _join(parent: ElementTree.Element) -> None:
    """Drop what paints nothing, join halos with their texts, say once what siblings share."""
    kept: list[ElementTree.Element] = []
    for child in parent:
        _join(child)
        is_text, painted = child.tag == f"{_SVG}text", {"fill", "stroke"} & child.attrib.keys()
        if not len(child) and (not painted or (is_text and not child.text)):
            continue
        if child.get("opacity") == "0":  # a label that would overlap another
            continue
        if kept and kept[-1].get("fill") == kept[-1].get("stroke") == marks.SURFACE:  # a halo
            halo = kept.pop().attrib
            shared = {name: halo[name] for name in ("stroke", "stroke-width", "stroke-linejoin")}
            child.attrib |= {**shared, "paint-order": "stroke"}
        kept += [child] if child.attrib or child.tag != f"{_SVG}g" else child
    parent[:] = kept
    if len(kept) < 2 or any(len(one) or _LABEL in one.attrib for one in kept):
        return
    for name, value in [*kept[0].items()]:
        if name not in _OWN and all(one.get(name) == value for one in kept):
            parent.set(name, value)
            for one in kept:
                del one.attrib[name]


def _to_a_tenth(number: re.Match[str]) -> str:
    return f"{float(number[0]):.1f}".removesuffix(".0")


def in_light(svg: str) -> str:
    """An SVG for a file: the light theme's colours in place of the page's variables."""
    named = re.sub(r"var\(--([\w-]+)\)", lambda match: COLOURS["light"][match.group(1)], svg)
    return named.replace("<svg ", '<svg font-family="sans-serif" ', 1)


def fill_words(text: str, words: Mapping[str, str]) -> str:
    """`text` with `{GPU}`, `{GPUs}` filled in; other braces are left alone."""
    for name, word in words.items():
        text = text.replace("{" + name + "}", word)
    return text


def write_charts(charts_dir: Path, svgs: Mapping[str, str]) -> None:
    """Write each chart as SVG and PNG by its name, and remove those of a former report."""
    written = set()
    for words, svg in svgs.items():
        name, drawn = file_name(words), in_light(svg)
        write_text(charts_dir / f"{name}.svg", drawn)
        # two pixels for each of its own: sharp in a paper's column
        white = drawn.replace("<svg ", '<svg style="background:white" ', 1)
        write_bytes(charts_dir / f"{name}.png", bytes(vl_convert.svg_to_png(white, scale=2)))
        written |= {f"{name}.svg", f"{name}.png"}
    for path in (*charts_dir.glob("*.svg"), *charts_dir.glob("*.png")):
        if path.name not in written:
            path.unlink()


def file_name(words: str) -> str:
    """A safe file name, whatever the words: names of models and panels come from outside."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "_", words).lstrip(".") or "_"
    if len(name) <= _LONGEST_NAME:
        return name
    digest = hashlib.sha256(words.encode("utf-8", errors="replace")).hexdigest()[:8]
    return f"{name[: _LONGEST_NAME - 9]}-{digest}"
