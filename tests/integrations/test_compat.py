"""Programs that say `import diskcache` run on this package.

Each runs in a process of its own, because what `diskcache` is belongs to the process. In these processes DiskCache is
installed as well, which shows that it is not the one that is imported.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from diskcache_like import Cache, Disk, compat
from diskcache_like.compat import args_to_key
from diskcache_like.migration.beside import copy_once
from diskcache_like.migration.copy import Migration, Options, is_finished

from ..support import project

ROOT = str(project.ROOT)
INSTALL = "import diskcache_like.compat\ndiskcache_like.compat.install()\n"


def run(program: str, *arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", *(arguments or ("-c", dedent(program)))]
    # Also where the package is not installed, and without whatever plugins pytest would find.
    environment = {**os.environ, "PYTHONPATH": ROOT, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=cwd, env=environment, check=False)


def passes(program: str) -> None:
    done = run(INSTALL + dedent(program))
    assert done.returncode == 0, done.stderr


def test_the_package_is_this_one() -> None:
    passes("""
        import diskcache as dc, diskcache_like
        assert issubclass(dc.Cache, diskcache_like.Cache) and issubclass(dc.FanoutCache, diskcache_like.FanoutCache)
        assert dc.Index is diskcache_like.Index and dc.Timeout is diskcache_like.Timeout
        assert dc.__version__ == "5.6.3" and dc.__name__ == "diskcache"
        from diskcache import Cache, Deque, Index, Timeout
        with Cache() as cache:
            cache["key"] = "value"
            assert cache["key"] == "value" and isinstance(cache, dc.Cache)
    """)


@pytest.mark.parametrize("module", ["cli", "core", "fanout", "persistent", "recipes"])
def test_submodules_are_found_in_every_way(module: str) -> None:
    passes(f"""
        import importlib, importlib.util, sys
        assert importlib.util.find_spec("diskcache.{module}") is not None
        one = importlib.import_module("diskcache.{module}")
        import diskcache.{module} as two
        from diskcache import {module} as three
        assert one is two is three is sys.modules["diskcache.{module}"]
        import diskcache
        assert diskcache.{module} is one
    """)


def test_submodules_are_there_without_being_imported() -> None:
    passes("""
        import diskcache
        assert diskcache.core.Cache is diskcache.Cache
        assert diskcache.fanout.FanoutCache is diskcache.FanoutCache
        assert diskcache.persistent.Deque is diskcache.Deque
        assert diskcache.recipes.Lock is diskcache.Lock
    """)


def test_names_of_core_are_there() -> None:
    passes("""
        from diskcache.core import DBNAME, DEFAULT_SETTINGS, ENOVAL, EVICTION_POLICY, METADATA, UNKNOWN
        from diskcache.core import MODE_BINARY, MODE_NONE, MODE_PICKLE, MODE_RAW, MODE_TEXT
        from diskcache.core import Cache, Constant, Disk, EmptyDirWarning, JSONDisk, Timeout, UnknownFileWarning
        from diskcache.core import args_to_key, full_name
        import os
        assert [MODE_NONE, MODE_RAW, MODE_BINARY, MODE_TEXT, MODE_PICKLE] == [0, 1, 2, 3, 4]
        assert Constant("ENOVAL") == ENOVAL and repr(UNKNOWN) == "UNKNOWN"
        assert full_name(os.path.join) == "posixpath.join"
        with Cache() as cache:
            assert os.path.exists(os.path.join(cache.directory, DBNAME))
    """)


def test_modules_of_the_standard_library_are_reached_through_core() -> None:
    passes("""
        import diskcache.core, sqlite3, os, time
        from unittest import mock
        assert diskcache.core.sqlite3 is sqlite3 and diskcache.core.op is os.path
        with mock.patch("diskcache.core.time.time", return_value=5.0):
            assert time.time() == 5.0
    """)


def test_a_name_that_diskcache_does_not_have_is_an_attribute_error() -> None:
    passes("""
        import diskcache, diskcache.core
        for module in (diskcache, diskcache.core):
            assert not hasattr(module, "nothing")
        try:
            from diskcache import nothing
        except ImportError as error:
            assert "nothing" in str(error)
        try:
            import diskcache.nothing
        except ModuleNotFoundError as error:
            assert error.name == "diskcache.nothing"
    """)


def test_a_star_import_brings_the_public_names() -> None:
    passes("""
        from diskcache import *
        assert {"Averager", "Cache", "Deque", "Disk", "Index", "RLock", "Timeout", "throttle"} <= set(dir())
    """)


def test_django_is_imported_when_it_is_asked_for() -> None:
    pytest.importorskip("django")
    passes("""
        import sys, diskcache
        assert "django" not in sys.modules
        from diskcache import DjangoCache
        from diskcache.djangocache import DjangoCache as the_same
        import diskcache_like.djangocache
        assert DjangoCache is the_same and issubclass(DjangoCache, diskcache_like.djangocache.DjangoCache)
    """)


def test_without_django_there_is_no_django_cache() -> None:
    passes("""
        import sys
        sys.modules["django"] = None
        import diskcache
        assert not hasattr(diskcache, "DjangoCache")
        try:
            import diskcache.djangocache
        except ImportError:
            pass
        else:
            raise AssertionError
    """)


def test_a_disk_of_ones_own_is_used(tmp_path: Path) -> None:
    passes(f"""
        import diskcache, json, zlib
        from diskcache import UNKNOWN

        class Compressed(diskcache.Disk):
            def __init__(self, directory, level=1, **kwargs):
                self.level = level
                super().__init__(directory, **kwargs)

            def put(self, key):
                return super().put(zlib.compress(json.dumps(key).encode(), self.level))

            def get(self, key, raw):
                return json.loads(zlib.decompress(super().get(key, raw)))

            def store(self, value, read, key=UNKNOWN):
                if not read:
                    value = zlib.compress(json.dumps(value).encode(), self.level)
                return super().store(value, read, key=key)

            def fetch(self, mode, filename, value, read):
                data = super().fetch(mode, filename, value, read)
                return data if read else json.loads(zlib.decompress(data))

        for kind in (diskcache.Cache, diskcache.FanoutCache):
            directory = {str(tmp_path)!r} + kind.__name__
            with kind(directory, disk=Compressed, disk_level=6) as cache:
                cache[["a", 1]] = {{"big": "x" * 100_000}}
                assert cache.disk.level == 6
            with kind(directory, disk=Compressed) as cache:
                assert cache[["a", 1]] == {{"big": "x" * 100_000}} and list(cache) == [["a", 1]]
                assert cache.check() == []
    """)


def test_a_cache_of_ones_own_comes_back_from_a_pickle() -> None:
    passes("""
        import pickle, diskcache

        class Named(diskcache.Cache):
            def __init__(self, directory=None, timeout=60, disk=diskcache.Disk, label=None, **settings):
                super().__init__(directory, timeout, disk, **settings)
                self.label = label

            def __getstate__(self):
                return (*super().__getstate__(), self.label)

        with Named(label="mine", hot_size_limit=5_000_000, timeout=7) as cache:
            cache["key"] = "value"
            with pickle.loads(pickle.dumps(cache)) as other:
                assert (other.label, other.timeout, other.hot_size_limit) == ("mine", 7, 5_000_000)
                assert other["key"] == "value" and other.directory == cache.directory
        with diskcache.FanoutCache(shards=3, timeout=2, disk=diskcache.JSONDisk) as cache:
            cache["key"] = "value"
            with pickle.loads(pickle.dumps(cache)) as other:
                assert (other["key"], other.timeout, type(other.disk)) == ("value", 2, diskcache.JSONDisk)
    """)


def test_a_reader_has_the_path_of_its_file_as_its_name() -> None:
    passes("""
        import diskcache
        with diskcache.Cache() as cache:
            cache["key"] = b"x" * 100_000
            with cache.read("key") as reader, open(reader.name, "rb") as again:
                assert again.read() == reader.read() == b"x" * 100_000
    """)


def test_pickles_that_name_diskcache_are_read() -> None:
    names = ["diskcache Cache", "diskcache.core Disk", "diskcache.core Timeout", "diskcache.fanout FanoutCache"]
    pickles = [f"c{name.replace(' ', chr(10))}\n.".encode() for name in names]
    passes(f"""
        import pickle, diskcache, diskcache_like
        found = [pickle.loads(data) for data in {pickles!r}]
        assert found == [diskcache.Cache, diskcache_like.Disk, diskcache_like.Timeout, diskcache.FanoutCache]
    """)


def test_handles_that_diskcache_pickled_are_opened(diskcache: Any, tmp_path: Path) -> None:
    with diskcache.Cache(tmp_path / "cache", timeout=5) as one, diskcache.FanoutCache(tmp_path / "fanout", 3) as two:
        pickled = pickle.dumps([one, two])
    for directory in ("cache", "fanout"):  # pickles of handles are about directories; what DiskCache wrote is not read
        (tmp_path / directory).rename(tmp_path / f"{directory} of DiskCache")
    passes(f"""
        import pickle, diskcache
        one, two = pickle.loads({pickled!r})
        assert type(one) is diskcache.Cache and type(two) is diskcache.FanoutCache
        assert (one.directory, one.timeout) == ({str(tmp_path / "cache")!r}, 5)
        two["key"] = "value"
        one.close()
        two.close()
    """)


def test_unknown_settings_are_ignored_with_one_warning_for_each_name(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        dedent("""
            import pickle, warnings
            import diskcache as dc, diskcache_like
            with warnings.catch_warnings(record=True) as found:
                warnings.simplefilter("always")
                for number in range(2):
                    with dc.Cache(f"{number}", suppress=False) as cache, dc.FanoutCache("f", 2, suppress=True) as fanout:
                        fanout.cache("child", compresion=1)["key"] = 1
                        assert pickle.loads(pickle.dumps(cache)).directory == cache.directory
            assert [problem.category for problem in found] == [UserWarning, UserWarning]
            assert all(problem.filename == __file__ for problem in found)
            assert str(found[0].message).startswith("unknown setting 'suppress', expected one of pickle, secret, ")
            assert str(found[0].message).endswith("; it is ignored")
            assert str(found[1].message).startswith("unknown setting 'compresion': did you mean 'compressor'? ")
            for kind in (diskcache_like.Cache, diskcache_like.FanoutCache):
                try:
                    kind("own", suppress=False)
                except diskcache_like.SettingError:
                    continue
                raise AssertionError("the package's own interface is strict")
            try:
                dc.Cache("0", size_limit="big")
            except diskcache_like.SettingError:
                pass
            else:
                raise AssertionError("a known setting is checked")
        """)
    )
    done = run("", "-m", "diskcache_like.compat", "script.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_the_options_of_a_django_cache_are_as_lenient(tmp_path: Path) -> None:
    pytest.importorskip("django")
    passes(f"""
        import warnings, diskcache, diskcache_like.djangocache
        parameters = {{"OPTIONS": {{"suppress": False, "size_limit": 5_000_000}}}}
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            backend = diskcache.DjangoCache({str(tmp_path / "cache")!r}, parameters)
        assert "'suppress'" in str(found[0].message) and backend._cache.size_limit == 5_000_000
        try:
            diskcache_like.djangocache.DjangoCache({str(tmp_path / "cache")!r}, parameters)
        except diskcache_like.SettingError:
            backend.close()
        else:
            raise AssertionError
    """)


def test_caches_of_both_names_are_instances_of_each_other() -> None:
    passes("""
        import collections.abc, copy, pickle
        import diskcache as dc, diskcache_like
        class Own(dc.Cache): pass
        class Mapped(dc.Cache, collections.abc.MutableMapping): pass
        with diskcache_like.Cache() as ours, dc.Cache() as theirs, dc.FanoutCache(shards=2) as fanout, Own() as own:
            for cache in (ours, theirs, fanout, own):
                assert isinstance(cache, dc.Cache) and isinstance(cache, diskcache_like.Cache)
                assert isinstance(cache, Own) is (cache is own)
                assert isinstance(cache, dc.FanoutCache) is (cache is fanout)
                assert not isinstance(cache, Mapped)
            assert isinstance(fanout.cache("child"), dc.Cache) and not isinstance(5, dc.Cache)
            assert type(pickle.loads(pickle.dumps(theirs))) is dc.Cache
            assert repr(theirs) == f"Cache({theirs.directory!r})"
        with Mapped() as mapped:
            mapped["key"] = 1
            assert dict(mapped.items()) == {"key": 1}
    """)


def test_modules_have_a_file() -> None:
    passes("""
        import diskcache, diskcache.core, diskcache_like, os
        for module in (diskcache, diskcache.core):
            assert os.path.dirname(module.__file__) == os.path.dirname(diskcache_like.__file__), module.__file__
    """)


def test_installing_twice_is_installing_once() -> None:
    passes("""
        import sys
        from diskcache_like import compat
        compat.install()
        import diskcache
        compat.install()
        assert sys.meta_path.count(compat._FINDER) == 1 and sys.modules["diskcache"] is diskcache
    """)


def test_uninstalling_gives_the_name_back(diskcache: Any) -> None:
    passes(f"""
        import diskcache, diskcache.core as ours
        from diskcache_like import compat
        assert compat.installed()
        compat.uninstall()
        compat.uninstall()
        assert not compat.installed()
        import diskcache, diskcache.core
        assert diskcache.__file__ == {diskcache.__file__!r} and diskcache.core is not ours
    """)


def test_install_refuses_where_another_diskcache_was_imported(diskcache: Any) -> None:
    done = run("import diskcache.core\nimport diskcache_like.compat\ndiskcache_like.compat.install()")
    assert done.returncode == 1
    assert "AlreadyImported: diskcache, diskcache.core" in done.stderr
    assert diskcache.__file__ in done.stderr
    assert "install first thing" in done.stderr


def test_importing_compat_installs_nothing() -> None:
    assert not compat.installed()
    assert run("import sys, diskcache_like.compat\nassert 'diskcache' not in sys.modules").returncode == 0


# -- without editing the program ----------------------------------------------------------------------------------

PROGRAM = "import sys, diskcache\nprint(diskcache.Cache.__module__, __name__, sys.argv, sys.path[0])\n"


def test_a_script_is_run(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(PROGRAM)
    done = run("", "-m", "diskcache_like.compat", str(script), "-m", "x")
    assert done.stderr == ""
    assert done.stdout == f"diskcache_like.compat __main__ {[str(script), '-m', 'x']} {tmp_path}\n"


def test_a_module_is_run(tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text(PROGRAM)
    done = run("", "-m", "diskcache_like.compat", "-m", "module", "--option", cwd=tmp_path)
    assert done.stderr == ""
    assert done.stdout == (f"diskcache_like.compat __main__ {[str(tmp_path / 'module.py'), '--option']} {tmp_path}\n")


def test_tests_are_run(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import diskcache\ndef test_it():\n    assert diskcache.Cache.__module__ == 'diskcache_like.compat'\n"
    )
    done = run("", "-m", "diskcache_like.compat", "-m", "pytest", "-q", "-p", "no:cacheprovider", cwd=tmp_path)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("arguments", [[], ["-m"], ["-x"], ["-m", "no_such_module_is_there"], ["no such file.py"]])
def test_what_cannot_be_run_is_told(arguments: list[str], tmp_path: Path) -> None:
    done = run("", "-m", "diskcache_like.compat", *arguments, cwd=tmp_path)
    assert done.returncode == 1
    known = len(arguments) == 2 or arguments == ["no such file.py"]
    assert (arguments[-1] if known else "usage: ") in done.stderr.splitlines()[-1]


# -- args_to_key ----------------------------------------------------------------------------------------------------

CALLS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((), {}),
    ((1, 2.0), {}),
    (("text", b"bytes", (1, 2)), {"z": 1, "a": [2]}),
    ((), {"x": None}),
    ((1,), {"x": 1, "y": 2}),
]


@pytest.mark.parametrize("typed", [False, True])
@pytest.mark.parametrize("ignore", [set(), {0}, {"x"}, {0, 1, "x", "y"}])
def test_args_to_key_gives_the_keys_of_diskcache(diskcache: Any, typed: bool, ignore: set[Any]) -> None:
    for args, kwargs in CALLS:
        expected = diskcache.core.args_to_key(("name",), args, kwargs, typed, ignore)
        assert args_to_key(("name",), args, kwargs, typed, ignore) == expected


@pytest.mark.parametrize("typed", [False, True])
def test_args_to_key_tells_calls_with_none_apart(typed: bool) -> None:
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        *CALLS,
        ((None,), {}),
        ((None, "x", None), {}),
        ((None, "x"), {}),
        ((1, None, "x"), {}),
        ((1,), {"x": None}),
        ((1, None), {"x": None}),
        ((None, (1, 2.0)), {}),
    ]
    made = [args_to_key(("name",), args, kwargs, typed, set()) for args, kwargs in calls]
    assert all(made.count(key) == 1 for key in made)


MAKE_OLD = """
import sys, collections, diskcache
with getattr(diskcache, sys.argv[2])(sys.argv[1]) as cache:
    cache.set("key", [1], expire=1000, tag="t")
    cache["large"] = "x" * 100_000
    if sys.argv[3:]:
        cache["object"] = slice(1, 2)
"""


def old_directory(directory: Path, kind: str = "Cache", *more: str) -> dict[Path, bytes]:
    """Have DiskCache make a directory; return its files with their content."""
    pytest.importorskip("diskcache")
    subprocess.run([sys.executable, "-c", MAKE_OLD, str(directory), kind, *more], check=True)
    return content(directory)


def content(directory: Path) -> dict[Path, bytes]:
    return {
        path: path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file() and "diskcache_like" not in path.parts
    }


def test_an_old_directory_raises_what_programs_expect(tmp_path: Path) -> None:
    before = old_directory(tmp_path / "old")
    passes(f"""
        import sqlite3, diskcache, diskcache_like
        for make in (diskcache.Cache, diskcache.FanoutCache, diskcache.Index):
            try:
                make({str(tmp_path / "old")!r})
            except sqlite3.OperationalError as error:
                assert isinstance(error, diskcache_like.DiskCacheDirectory)
                for word in ("'migrate'", "'fresh'", "'raise'", "install(existing=", "untouched"):
                    assert word in str(error), error
            else:
                raise AssertionError(make)
    """)
    assert content(tmp_path / "old") == before
    assert not (tmp_path / "old" / "diskcache_like").exists()


@pytest.mark.parametrize("kind", ["Cache", "FanoutCache"])
def test_an_old_directory_is_migrated_once(kind: str, tmp_path: Path) -> None:
    before = old_directory(tmp_path / "old", kind)
    program = f"""
        import diskcache_like.compat
        diskcache_like.compat.install(existing="migrate")
        diskcache_like.compat.install()
        import diskcache, time
        with diskcache.{kind}({str(tmp_path / "old")!r}) as cache:
            assert cache.get("key", tag=True) == ([1], "t")
            assert 900 < cache.get("key", expire_time=True)[1] - time.time() <= 1000
            assert cache["large"] == "x" * 100_000
            assert cache.incr("runs") == RUN
            assert cache.directory == {str(tmp_path / "old" / "diskcache_like")!r}
    """
    for number in (1, 2):
        done = run(program.replace("RUN", str(number)))
        assert done.returncode == 0, done.stderr
    assert content(tmp_path / "old") == before


def test_processes_that_start_together_migrate_once(tmp_path: Path) -> None:
    old_directory(tmp_path / "old", "FanoutCache")
    program = f"""
        import diskcache_like.compat
        diskcache_like.compat.install(existing="migrate")
        import diskcache
        with diskcache.FanoutCache({str(tmp_path / "old")!r}, timeout=60) as cache:
            assert cache["key"] == [1]
            cache.incr("runs", retry=True)
    """
    with ThreadPoolExecutor(4) as pool:
        for done in pool.map(run, [program] * 4):
            assert done.returncode == 0, done.stderr
    with Cache(tmp_path / "old" / "diskcache_like") as cache:
        assert cache["runs"] == 4


def test_an_interrupted_migration_goes_on(tmp_path: Path) -> None:
    old_directory(tmp_path / "old")
    new = tmp_path / "old" / "diskcache_like"
    with pytest.raises(ZeroDivisionError), Migration(tmp_path / "old", new, Options("pickle"), within=True) as one:
        one.run(lambda number: 1 // 0)
    assert not is_finished(str(new))
    copy_once(str(tmp_path / "old"), Disk)
    assert is_finished(str(new))
    with Cache(new) as cache:
        assert cache["key"] == [1]


def test_what_cannot_be_migrated_as_data_is_left_out_with_a_warning(tmp_path: Path) -> None:
    old_directory(tmp_path / "old", "Cache", "with an object")
    with pytest.warns(UserWarning, match="1 entries of .* were not copied; the first: 'object'"):
        copy_once(str(tmp_path / "old"), Disk)
    with Cache(tmp_path / "old" / "diskcache_like") as cache:
        assert set(cache) == {"key", "large"}


def test_an_old_directory_is_left_for_a_fresh_one(tmp_path: Path) -> None:
    before = old_directory(tmp_path / "old")
    for program in ("cache.set('mine', 1)", "assert [*cache] == ['mine']"):
        done = run(f"""
            import diskcache_like.compat
            diskcache_like.compat.install(existing="fresh")
            import diskcache
            with diskcache.Cache({str(tmp_path / "old")!r}) as cache:
                {program}
        """)
        assert done.returncode == 0, done.stderr
    assert content(tmp_path / "old") == before


def test_what_cannot_be_migrated_at_all_raises_what_programs_expect(tmp_path: Path) -> None:
    old_directory(tmp_path / "old")
    done = run(f"""
        import diskcache_like.compat, sqlite3
        diskcache_like.compat.install(existing="migrate")
        import diskcache
        class Own(diskcache.Disk):
            def store(self, value, read, key=diskcache.UNKNOWN):
                return super().store(value, read, key=key)
        try:
            diskcache.Cache({str(tmp_path / "old")!r}, disk=Own)
        except sqlite3.OperationalError as error:
            assert "is not migrated: only a program that has the disk class 'Own'" in str(error), error
        else:
            raise AssertionError
    """)
    assert done.returncode == 0, done.stderr


def test_a_script_is_run_with_a_choice_of_what_to_do_with_old_directories(tmp_path: Path) -> None:
    old_directory(tmp_path / "old")
    script = tmp_path / "script.py"
    script.write_text("import diskcache, sys\nassert diskcache.Cache(sys.argv[1])['key'] == [1]\n")
    arguments = ("-m", "diskcache_like.compat", "--existing", "migrate", str(script), str(tmp_path / "old"))
    done = run("", *arguments)
    assert done.returncode == 0, done.stderr
    done = run("", "-m", "diskcache_like.compat", "--existing", "burn", str(script))
    assert "existing is 'burn', expected one of 'raise', 'migrate', 'fresh'" in done.stderr
