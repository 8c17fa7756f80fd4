"""What happens where NumPy, pyarrow or another library is not installed: an error that says how to install it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest

from diskcache_like import Cache

from ..support.cache_kinds import QUICK

# Runs with some packages taken away, in a process of its own: what is imported cannot be taken back.
PRELUDE = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in sys.argv[2].split(","):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
from diskcache_like import Cache
from diskcache_like.errors import MissingDependency, ValueEncodeError

"""
READ = """
with Cache(sys.argv[1], **eval(sys.argv[3])) as cache:
    assert cache["plain"] == {"a": [1, (2,)]}
    for key in cache:
        if key != "plain":
            for read in (cache.get, cache.__getitem__, cache.get_entry, cache.pop):
                try:
                    read(key)
                except MissingDependency as error:
                    print(key, error)
                else:
                    raise AssertionError(key)
    assert cache.check(fix=True) == []
    assert len(cache) == int(sys.argv[4])
    assert cache.metrics().damaged == 0
"""


def run(program: str, *arguments: object) -> str:
    """Run a program without some packages; return what it prints."""
    command = [sys.executable, "-c", PRELUDE + program, *map(str, arguments)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("options", [{}, {"hot_size_limit": 0}, {"mmap": True}], ids=str)
def test_an_entry_that_cannot_be_read_here_is_neither_missing_nor_damaged(
    tmp_path: Path, options: dict[str, object]
) -> None:
    with Cache(tmp_path, **QUICK) as cache:
        cache["plain"] = {"a": [1, (2,)]}
        cache["array"], cache["large"], cache["scalar"] = np.arange(3), np.arange(100_000), np.float32(1)
        cache["pandas"], cache["polars"] = pd.DataFrame({"a": [1]}), pl.DataFrame({"a": range(50_000)})
        count = len(cache)
    said = run(READ, tmp_path, "numpy,pandas,polars,pyarrow", options, count)
    assert "array an array of NumPy needs 'numpy', which is not installed: pip install 'diskcache-like[numpy]'" in said
    assert "large an array of NumPy needs 'numpy'" in said
    assert "scalar an array of NumPy needs 'numpy'" in said
    assert "pandas a table needs 'pyarrow', which is not installed: pip install 'diskcache-like[arrow]'" in said
    assert "polars a table needs 'pyarrow'" in said
    with Cache(tmp_path) as cache:
        assert cache["large"].shape == (100_000,)


def test_frames_need_their_own_library(tmp_path: Path) -> None:
    with Cache(tmp_path, **QUICK) as cache:
        cache["plain"] = {"a": [1, (2,)]}
        cache["pandas"], cache["polars"] = pd.DataFrame({"a": [1]}), pl.DataFrame({"a": range(50_000)})
    said = run(READ, tmp_path, "pandas,polars", {}, 3)
    assert (
        "pandas a frame of pandas needs 'pandas', which is not installed: pip install 'diskcache-like[pandas]'" in said
    )
    assert "polars a frame of polars needs 'polars'" in said


WRITE = """
import pandas
with Cache(sys.argv[1], pickle="never") as cache:
    try:
        cache["frame"] = pandas.DataFrame({"a": [1]})
    except ValueEncodeError as error:
        print(error)
    assert len(cache) == 0
with Cache(sys.argv[1] + "/signed") as cache:
    cache["frame"] = pandas.DataFrame({"a": [1]})
    assert cache["frame"].equals(pandas.DataFrame({"a": [1]}))
"""


def test_a_frame_without_arrow_is_left_to_the_policy(tmp_path: Path) -> None:
    said = run(WRITE, tmp_path, "pyarrow")
    assert "a table needs 'pyarrow', which is not installed: pip install 'diskcache-like[arrow]'" in said


IDLE = """
with Cache(sys.argv[1], serializer="arrow", pickle="trusted") as cache:
    cache["key"] = [1, 2.5, "x"]
    assert cache["key"] == [1, 2.5, "x"]
    assert "numpy" not in sys.modules
    assert "pyarrow" not in sys.modules
with Cache(sys.argv[1] + "/default") as cache:
    cache["key"] = {"a": [1, 2.5, "x"]}
    with cache.open("stream", "wb") as writer:
        writer.write(b"x" * 100_000)
    assert cache["key"] == {"a": [1, 2.5, "x"]}
    assert not {"numpy", "pandas", "polars", "pyarrow"} & set(sys.modules)
"""


def test_nothing_is_imported_that_is_not_used(tmp_path: Path) -> None:
    run(IDLE, tmp_path, "")
    run(IDLE, tmp_path / "absent", "numpy,pandas,polars,pyarrow")


MONITOR = """
from diskcache_like.integrations import otel, prometheus
with Cache(sys.argv[1]) as cache:
    for report in (prometheus.Collector, otel.instrument):
        try:
            report(cache)
        except MissingDependency as error:
            print(error)
        else:
            raise AssertionError(report)
"""


def test_monitoring_needs_its_libraries(tmp_path: Path) -> None:
    said = run(MONITOR, tmp_path, "prometheus_client,opentelemetry").splitlines()
    assert said == [
        "Collector needs 'prometheus_client', which is not installed: pip install 'diskcache-like[prometheus]'",
        "instrument needs 'opentelemetry-api', which is not installed: pip install 'diskcache-like[otel]'",
    ]
