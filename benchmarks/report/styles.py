"""How plots look: colours that hold up in colour-blind vision and in grey, line styles, fonts, and ticks with units.

Colours: Masataka Okabe and Kei Ito, "Color Universal Design" (2008), https://jfly.uni-koeln.de/color/. Its yellow is
too faint for a line on white, so a grey takes that place. Nothing is told by colour alone: lines also differ by marker
and dashes.
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from typing import Any

from benchmarks.report.text import UNITS, size

BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
BLUE, VERMILLION, PURPLE, GREY = "#0072B2", "#D55E00", "#CC79A7", "#767676"
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES: tuple[Any, ...] = ("-", "--", "-.", (0, (1, 1.2)), (0, (5, 1, 1, 1, 1, 1)))
INK, RULE = "#222222", "#C8C8C8"

WIDTH = 8.0  # inches: about the text of a page of documentation, so that fonts come out at their nominal size
DPI = 110
LABEL_CHARACTERS = 26

SETTINGS: dict[str, Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": INK,
    "axes.grid": True,
    "axes.labelcolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "figure.constrained_layout.h_pad": 0.08,
    "figure.constrained_layout.wspace": 0.07,
    "figure.dpi": DPI,
    "figure.facecolor": "white",
    "font.size": 9.5,
    "grid.color": RULE,
    "grid.linewidth": 0.6,
    "legend.fontsize": 9,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "lines.markersize": 6,
    "savefig.dpi": DPI,
    "savefig.facecolor": "white",  # a page may be dark
    "savefig.transparent": False,
    # Text stays text, and the same record gives the same file.
    "svg.fonttype": "none",
    "svg.hashsalt": "diskcache_like",
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}


@dataclass(frozen=True)
class Look:
    """How one subject's line looks, the same in every plot."""

    colour: str
    marker: str
    dashes: Any


# One colour for one subject in every plot, whatever else is measured; the kinds of one package share its colour.
SUBJECTS = {
    "cache": Look(BLUE, "o", "-"),
    "cache-cold": Look(SKY, "o", "--"),
    "fanout-4-1s": Look(BLUE, "s", "-."),
    "fanout-8-10ms": Look(BLUE, "D", (0, (1, 1.2))),
    "diskcache": Look(VERMILLION, "^", "-"),
    "diskcache-fanout-8": Look(VERMILLION, "v", "--"),
    "diskcache-fanout-4-1s": Look(VERMILLION, "^", "-."),
    "memcached": Look(GREEN, "P", "-"),
    "redis": Look(PURPLE, "X", "-"),
    "lmdb": Look(BLACK, "s", "-"),
    "pysciqlop": Look(ORANGE, "D", "-"),
}


def look_of(subject: str, place: int) -> Look:
    """Return a subject's own look, or for one that has none a grey one that its place among all subjects decides."""
    turn = place + place // len(MARKERS)
    return SUBJECTS.get(subject) or Look(GREY, MARKERS[turn % len(MARKERS)], DASHES[turn % len(DASHES)])


def wrapped(label: str) -> str:
    """Break a long label into lines, between words only."""
    together = re.sub(r"(?<=\d) (?=(?:ms|s|shards)\b)", "\u00a0", label)  # a number stays with its unit
    return textwrap.fill(together, LABEL_CHARACTERS, break_long_words=False, break_on_hyphens=False)


def tick_duration(nanoseconds: float) -> str:
    """Write a duration on an axis: short, with its unit."""
    scale, unit = next((pair for pair in UNITS if nanoseconds >= pair[0] * 0.9995), UNITS[-1])
    return f"{nanoseconds / scale:g} {unit}"


def tick_size(count: float) -> str:
    return size(count).replace(".00 ", " ").replace(".0 ", " ")


def tick_rate(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 1 else f"{rate:.3g}"


def tick_count(count: float) -> str:
    return f"{count:,.0f}"
