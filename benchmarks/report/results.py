"""A record as part of a page of documentation: a choice of the plots, all tables, and the facts about the machine."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from benchmarks import page
from benchmarks.report.plots import BARS, COST, CURVES, FORMATS, SIZE, THROUGHPUT, Drawing, draw
from benchmarks.report.record import Record
from benchmarks.report.tables import machine_text, scenario_tables

RESULTS = "results"
OVERVIEW = "overview"  # a picture that stays where it is: it comes from a run of its own
IMAGES = Path("images", "benchmarks")
# Where the way to the slowest call is the point, and where memory and disk are.
CURVED = ("classic", "zipf-99-1", "hot-key", "eviction", "open-loop")
CURVES_OF = {"classic": ("get", "set", "delete")}
SIZED = ("growth", "sizes", "eviction")


def fill(target: Path, record: Record) -> list[Drawing]:
    """Replace the results in a page by those of `record`, and the plots beside it; return the plots."""
    page.marked(target, RESULTS)
    images = target.parent / IMAGES
    drawn = draw(record, images, chosen=lambda drawing: belongs(record, drawing))
    kept = {f"{name}.{kind}" for name in (OVERVIEW, *(drawing.name for drawing in drawn)) for kind in FORMATS}
    for path in images.iterdir():
        if path.suffix[1:] in FORMATS and path.name not in kept:  # of an earlier record
            path.unlink()
    page.put(target, RESULTS, results(record, drawn))
    return drawn


def belongs(record: Record, drawing: Drawing) -> bool:
    """Tell whether a plot belongs on the page: of scenarios with steps the ends, and every plot over the steps."""
    steps = record.steps(drawing.scenario)
    last, first = drawing.step in (None, steps[-1]), drawing.step in (None, steps[0])
    if drawing.kind == BARS:
        return first or last
    if drawing.kind == CURVES:
        return drawing.scenario in CURVED and last and drawing.call in CURVES_OF.get(drawing.scenario, ("get", "set"))
    if drawing.kind == SIZE:
        return drawing.scenario in SIZED and last
    return drawing.kind in (THROUGHPUT, COST)


def results(record: Record, drawn: Sequence[Drawing]) -> str:
    """Return the results as Markdown."""
    lines = ["```text", machine_text(record).rstrip(), "```", ""]
    for scenario, facts in record.scenarios.items():
        lines += [f"### {facts.title}", "", facts.question, ""]
        for drawing in drawn:
            if drawing.scenario == scenario:
                lines += [image(re.sub(r"[\[\]]", "", drawing.title), IMAGES / drawing.name), ""]
        tables = "\n".join(table.text() for table in scenario_tables(record, scenario))
        lines += ["<details>", f"<summary>Tables: {facts.title}</summary>", "", "```text", tables.rstrip(), "```", ""]
        lines += ["</details>", ""]
    return "\n".join(lines)


def image(title: str, place: Path) -> str:
    """Return a picture as Markdown, with a link to it as PNG."""
    return f"![{title}]({place.as_posix()}.svg)\n\n[{title} (PNG)]({place.as_posix()}.png)"
