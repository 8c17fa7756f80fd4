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
from diskcache_like.compat.migration.beside import copy_once
from diskcache_like.compat.migration.copy import Migration, MigrationOptions, is_finished

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


def test_programs_that_import_diskcache_run_on_this_package() -> None:
    options = ("-q", "-c", os.devnull, "--rootdir", ROOT, "--noconftest", "-p", "no:cacheprovider")
    programs = str(Path(__file__).with_name("diskcache_programs.py"))
    done = run("", "-m", "diskcache_like.compat", "-m", "pytest", *options, programs)
    assert done.returncode == 0, done.stdout + done.stderr


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


@pytest.mark.parametrize("arguments", [[], ["-m"], ["-x"]])
def test_wrong_usage_is_told(arguments: list[str]) -> None:
    with pytest.raises(SystemExit, match="usage: "):
        compat.main(arguments)
    assert not compat.installed()


@pytest.mark.parametrize("arguments", [["-m", "no_such_module_is_there"], ["no such file.py"]])
def test_what_cannot_be_run_is_named(arguments: list[str], tmp_path: Path) -> None:
    done = run("", "-m", "diskcache_like.compat", *arguments, cwd=tmp_path)
    assert done.returncode == 1
    assert arguments[-1] in done.stderr.splitlines()[-1]


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


def old_directory(directory: Path, kind: str = "Cache", **more: object) -> dict[Path, bytes]:
    """Have DiskCache make a directory; return its files with their content."""
    diskcache = pytest.importorskip("diskcache")
    with getattr(diskcache, kind)(directory) as cache:
        cache.set("key", [1], expire=1000, tag="t")
        cache["large"] = "x" * 100_000
        for key, value in more.items():
            cache[key] = value
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
    with (
        pytest.raises(ZeroDivisionError),
        Migration(tmp_path / "old", new, MigrationOptions("pickle"), within=True) as one,
    ):
        one.run(lambda number: 1 // 0)
    assert not is_finished(str(new))
    copy_once(str(tmp_path / "old"), Disk)
    assert is_finished(str(new))
    with Cache(new) as cache:
        assert cache["key"] == [1]


def test_what_cannot_be_migrated_as_data_is_left_out_with_a_warning(tmp_path: Path) -> None:
    old_directory(tmp_path / "old", object=slice(1, 2))
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
