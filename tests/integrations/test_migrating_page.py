"""The page about migrating: each line that shows a difference holds here, and does not hold on DiskCache."""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import re
import threading
import warnings
from asyncio import sleep
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import diskcache_like

from ..support.inspection import cache_descriptors
from ..support.project import ROOT

PAGE = ROOT / "docs" / "migrating.md"
ROWS = re.findall(r"^\| (.+) \| (.+) \| `([^`]+)` \|$", PAGE.read_text(), re.MULTILINE)
# On DiskCache these wait for a minute, never end, may hang, or leave a coroutine behind.
NOT_ON_DISKCACHE = ("c = Cache(cache.directory, timeout=0)", "os.fork()", "d.extend(d)", "(sleep)")


def raises(error: type[BaseException], call: Callable[[], object]) -> None:
    with pytest.raises(error):
        call()


def task(call: Callable[[], object]) -> None:
    async def main() -> None:
        call()

    asyncio.run(main())


def thread(call: Callable[[], object]) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(call).result()


def files(cache: Any) -> list[Path]:
    return list(Path(cache.directory).rglob("*.val"))


def descriptors(cache: Any) -> list[str]:
    return cache_descriptors(cache.directory)


def names(module: ModuleType, directory: Path) -> dict[str, Any]:
    (directory / "empty").mkdir()
    tools = (asyncio, os, pickle, warnings, sleep, raises, task, thread, files, descriptors)
    classes = (Path, OrderedDict, ThreadPoolExecutor, threading.Thread, threading.Barrier)
    return {
        **{name: getattr(module, name) for name in module.__all__},
        **{tool.__name__: tool for tool in (*tools, *classes)},
        "cache": module.Cache(str(directory / "cache")),
        "directory": str(directory / "empty"),
    }


@contextmanager
def staying_here() -> Iterator[None]:
    """End a child that a line made and that comes back instead of leaving."""
    process = os.getpid()
    try:
        yield
    finally:
        if os.getpid() != process:
            os._exit(99)


def run(line: str, module: ModuleType, directory: Path) -> None:
    space = names(module, directory)
    try:
        with staying_here(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exec(compile(line, str(PAGE), "exec"), space)
    finally:
        for value in space.values():
            if isinstance(value, module.Cache):
                value.close()
        space.clear()
        gc.collect()  # closes what the line left open


def test_every_row_shows_what_it_says() -> None:
    table = [line for line in PAGE.read_text().splitlines() if line.startswith("| ") and "shown by" not in line]
    assert len(ROWS) == len(table) >= 38


@pytest.mark.parametrize("line", [row[2] for row in ROWS])
def test_a_line_holds_here(line: str, tmp_path: Path) -> None:
    run(line, diskcache_like, tmp_path)


@pytest.mark.parametrize("line", [row[2] for row in ROWS if not any(part in row[2] for part in NOT_ON_DISKCACHE)])
def test_a_line_does_not_hold_on_diskcache(line: str, tmp_path: Path, diskcache: ModuleType) -> None:
    with pytest.raises((Exception, pytest.fail.Exception)):
        run(line, diskcache, tmp_path)


def test_the_page_names_every_option_of_the_command() -> None:
    text = PAGE.read_text()
    for option in ("--dry-run", "--trust-pickles", "--disk", "--kind", "--queue"):
        assert f"`{option}" in text or f" {option}" in text
