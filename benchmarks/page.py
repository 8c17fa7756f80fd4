"""A record as part of a page of documentation: between two marks, so that the prose around it stays.

A page gets a choice of the plots, all tables, and the facts about the machine.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from benchmarks.plots import BARS, COST, CURVES, FORMATS, SIZE, THROUGHPUT, Drawing, draw
from benchmarks.record import Record
from benchmarks.subjects import BenchmarkError
from benchmarks.tables import machine_text, scenario_tables

RESULTS = "results"
OVERVIEW = "overview"  # which stays where it is: it comes from a run of its own
IMAGES = Path("images", "benchmarks")
# Where the way to the slowest call is the point, and where memory and disk are.
CURVED = ("classic", "zipf-99-1", "hot-key", "eviction", "open-loop")
CURVES_OF = {"classic": ("get", "set", "delete")}
SIZED = ("growth", "sizes", "eviction")


def fill(page: Path, record: Record) -> list[Drawing]:
    """Replace the results in `page` by those of `record`, and the plots beside it; return the plots."""
    marked(page, RESULTS)
    images = page.parent / IMAGES
    drawn = draw(record, images, chosen=lambda drawing: belongs(record, drawing))
    _remove_others(images, drawn)
    put(page, RESULTS, results(record, drawn))
    return drawn


def put(page: Path, mark: str, text: str) -> None:
    """Replace what stands between the two marks of that name in `page`."""
    before, after = marked(page, mark)
    begin, end = marks(mark)
    page.write_text(f"{before}{begin}\n\n{text}\n{end}{after}", encoding="utf-8")


def marked(page: Path, mark: str) -> tuple[str, str]:
    """Return the text before and after a page's one place of that name."""
    begin, end = marks(mark)
    try:
        text = page.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BenchmarkError(f"cannot read the page {page}: {error}") from error
    if (text.count(begin), text.count(end)) != (1, 1) or text.index(begin) > text.index(end):
        raise BenchmarkError(f"{page} has no place for {mark}; put {begin} and, below it, {end} into it, once each")
    return text.partition(begin)[0], text.partition(end)[2]


def marks(mark: str) -> tuple[str, str]:
    """Return how a place of that name begins and ends."""
    return f"<!-- {mark}:begin -->", f"<!-- {mark}:end -->"


def _remove_others(images: Path, drawn: Sequence[Drawing]) -> None:
    """Remove plots of an earlier record that this one does not have."""
    kept = {f"{name}.{kind}" for name in (OVERVIEW, *(drawing.name for drawing in drawn)) for kind in FORMATS}
    for path in images.iterdir():
        if path.suffix[1:] in FORMATS and path.name not in kept:
            path.unlink()


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
                lines += [_image(drawing), ""]
        tables = "\n".join(table.text() for table in scenario_tables(record, scenario))
        lines += ["<details>", f"<summary>Tables: {facts.title}</summary>", "", "```text", tables.rstrip(), "```", ""]
        lines += ["</details>", ""]
    return "\n".join(lines)


def _image(drawing: Drawing) -> str:
    place = (IMAGES / drawing.name).as_posix()
    title = re.sub(r"[\[\]]", "", drawing.title)
    return f"![{title}]({place}.svg)\n\n[{title} (PNG)]({place}.png)"
