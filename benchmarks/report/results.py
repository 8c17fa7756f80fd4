"""A record as pages of documentation: one that says where it was measured, and one for each scenario.

Results stand between two marks, so that the prose around them stays. The page of a scenario has its plots and tables.
"""

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
    """List the results of `record` in a page, write one for each scenario and draw the plots; return the plots."""
    page.marked(target, RESULTS)
    images = target.parent.parent / IMAGES
    drawn = draw(record, images, chosen=lambda drawing: belongs(record, drawing))
    kept = {f"{name}.{kind}" for name in (OVERVIEW, *(drawing.name for drawing in drawn)) for kind in FORMATS}
    for path in images.iterdir():
        if path.suffix[1:] in FORMATS and path.name not in kept:  # of an earlier record
            path.unlink()
    begin, end = page.marks(RESULTS)
    for path in target.parent.glob("*.md"):
        if path != target and begin in path.read_text(encoding="utf-8"):
            path.unlink()
    for scenario, facts in record.scenarios.items():
        path = target.with_name(f"{scenario}.md")
        path.write_text(f"# {facts.title}\n\n{facts.question}\n\n{begin}\n{end}\n", encoding="utf-8")
        page.put(path, RESULTS, results(record, scenario, drawn))
    page.put(target, RESULTS, contents(record))
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


def contents(record: Record) -> str:
    """Return the facts about the machine, and a link to each scenario's page, as Markdown."""
    links = [f"- [{facts.title}]({scenario}.md): {facts.question}" for scenario, facts in record.scenarios.items()]
    return "\n".join(["```text", machine_text(record).rstrip(), "```", "", *links, ""])


def results(record: Record, scenario: str, drawn: Sequence[Drawing]) -> str:
    """Return a scenario's plots and tables as Markdown."""
    of_it = [drawing for drawing in drawn if drawing.scenario == scenario]
    images = [image(re.sub(r"[\[\]]", "", each.title), Path("..", IMAGES, each.name)) + "\n" for each in of_it]
    tables = "\n".join(table.text() for table in scenario_tables(record, scenario))
    return "\n".join([*images, "```text", tables.rstrip(), "```", ""])


def image(title: str, place: Path) -> str:
    """Return a picture as Markdown, with a link to it as PNG."""
    return f"![{title}]({place.as_posix()}.svg)\n\n[{title} (PNG)]({place.as_posix()}.png)"
