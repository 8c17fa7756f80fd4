"""The marked places of a page of documentation, which commands fill and around which prose stays as it is."""

from __future__ import annotations

from pathlib import Path

from benchmarks.peers.spec import BenchmarkError


def put(page: Path, mark: str, text: str) -> None:
    """Replace what stands between the two marks of that name in `page`."""
    before, after = marked(page, mark)
    begin, end = marks(mark)
    page.write_text(f"{before}{begin}\n\n{text}\n{end}{after}", encoding="utf-8")


def has(page: Path, mark: str) -> bool:
    """Tell whether a page has a place of that name."""
    return marks(mark)[0] in _content(page)


def marked(page: Path, mark: str) -> tuple[str, str]:
    """Return the text before and after a page's one place of that name."""
    begin, end = marks(mark)
    text = _content(page)
    if (text.count(begin), text.count(end)) != (1, 1) or text.index(begin) > text.index(end):
        raise BenchmarkError(f"{page} has no place for {mark}; put {begin} and, below it, {end} into it, once each")
    return text.partition(begin)[0], text.partition(end)[2]


def _content(page: Path) -> str:
    try:
        return page.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BenchmarkError(f"cannot read the page {page}: {error}") from error


def marks(mark: str) -> tuple[str, str]:
    """Return how a place of that name begins and ends."""
    return f"<!-- {mark}:begin -->", f"<!-- {mark}:end -->"
