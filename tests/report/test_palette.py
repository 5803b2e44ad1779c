"""Colours differ for every common kind of colour vision, and can be read as text."""

import itertools

import numpy as np
import pytest

from scaling.report.charts.palette import COLOURS, LAYOUT_SLOTS, variable

# Machado, Oliveira, Fernandes 2009, severity 1, on linear RGB
MACHADO = {
    "normal": np.eye(3),
    "protanopia": np.array([
        [0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ]),
    "deuteranopia": np.array([
        [0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ]),
    "tritanopia": np.array([
        [1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ]),
}  # fmt: skip


def linear(colour: str) -> np.ndarray:
    channels = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def oklab(rgb: np.ndarray) -> np.ndarray:
    """Ottosson 2020, from linear RGB."""
    lms = np.array([
        [0.4122214708, 0.5363325363, 0.0514459929], [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]) @ np.clip(rgb, 0, 1)  # fmt: skip
    return np.array([
        [0.2104542553, 0.7936177850, -0.0040720468], [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]) @ np.cbrt(lms)  # fmt: skip


def distance(one: str, other: str, vision: str) -> float:
    seen = [oklab(MACHADO[vision] @ linear(colour)) for colour in (one, other)]
    return float(100 * np.linalg.norm(seen[0] - seen[1]))


def contrast(one: str, other: str) -> float:
    """WCAG 2.1 contrast ratio."""
    light, dark = sorted(
        (float(np.array([0.2126, 0.7152, 0.0722]) @ linear(c)) for c in (one, other)), reverse=True
    )
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize(("theme", "least"), [("light", 10), ("dark", 11)])
@pytest.mark.parametrize("vision", MACHADO)
def test_any_two_layouts_are_told_apart(theme, least, vision):
    layouts = [COLOURS[theme][f"c{slot}"] for slot in range(1, LAYOUT_SLOTS + 1)]
    needed = 7 if vision == "tritanopia" else least
    closest = min(distance(*pair, vision) for pair in itertools.combinations(layouts, 2))
    assert closest >= needed


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize(
    "name", ["ink", "ink-2", "accent", "warn", "bad", "c1", "c2", "c3", "c4", "c5", "c6"]
)
def test_what_colours_text_is_readable_on_the_surface(theme, name):
    assert contrast(COLOURS[theme][name], COLOURS[theme]["surface"]) >= 4.5


def test_an_unknown_colour_is_an_error_not_black():
    with pytest.raises(KeyError, match="no colour 'red'"):
        variable("red")
