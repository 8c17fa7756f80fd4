"""Packages: what `make dist` refuses to give away, what the smoke test notices, and which wheels a release has.

`make dist` itself builds, installs and tries them; it takes half a minute and pip's index.
"""

from __future__ import annotations

import io
import os
import re
import shlex
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from diskcache_like.encoding import checksum
from tools import build_backend, dist, smoke

from ..support.project import ROOT

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
WHEELS = PROJECT["tool"]["cibuildwheel"]
MODULES = ("diskcache_like/__init__.py", "diskcache_like/py.typed")
CORE = "diskcache_like/coherence/_native.abi3.so"
TAG = "cp311-abi3-linux_x86_64"


def archive(folder: Path, *names: str) -> Path:
    """Make a source archive of empty files."""
    path = folder / "x-0.1.0.tar.gz"
    with tarfile.open(path, "w:gz") as opened:
        for name in (*names, "PKG-INFO", "x.egg-info/SOURCES.txt"):
            opened.addfile(tarfile.TarInfo(f"x-0.1.0/{name}"), io.BytesIO())
    return path


def wheel(folder: Path, tag: str, *names: str) -> Path:
    """Make a wheel of empty files."""
    path = folder / f"x-0.1.0-{tag}.whl"
    with zipfile.ZipFile(path, "w") as opened:
        opened.mkdir("diskcache_like")
        for name in (*names, "x-0.1.0.dist-info/METADATA"):
            opened.writestr(name, "")
    return path


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dist.Built:
    """Return packages that nothing is wrong with but that they hold nothing, so that only twine would complain."""
    monkeypatch.setattr(dist, "tracked", lambda: {*MODULES, "Makefile", ".gitignore"})
    monkeypatch.setattr(dist, "run", lambda *_: "")
    return dist.Built(
        archive(tmp_path, *MODULES, "Makefile"),
        wheel(tmp_path, TAG, *MODULES, CORE),
    )


def test_whole_packages_pass(built: dist.Built) -> None:
    dist.check(built)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (MODULES, "x-0.1.0.tar.gz lacks Makefile; see MANIFEST.in"),
        ((*MODULES, "Makefile", "tests/notes.txt"), "x-0.1.0.tar.gz holds tests/notes.txt"),
    ],
)
def test_an_archive_that_is_not_the_project_is_refused(
    names: tuple[str, ...], message: str, built: dist.Built, tmp_path: Path
) -> None:
    with pytest.raises(dist.DistError, match=re.escape(message)):
        dist.check(built._replace(source=archive(tmp_path, *names)))


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ((*MODULES[:1], CORE), "linux_x86_64.whl lacks diskcache_like/py.typed"),
        ((*MODULES, CORE, "tests/__init__.py"), "linux_x86_64.whl holds tests/__init__.py"),
        (MODULES, "linux_x86_64.whl holds 0 compiled cores; expected 1"),
    ],
)
def test_a_wheel_that_is_not_the_package_is_refused(
    names: tuple[str, ...], message: str, built: dist.Built, tmp_path: Path
) -> None:
    with pytest.raises(dist.DistError, match=re.escape(message)):
        dist.check(built._replace(wheel=wheel(tmp_path, TAG, *names)))


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs the project's git repository")
def test_the_projects_files_are_those_that_git_does_not_ignore() -> None:
    names = dist.tracked()
    assert names is not None
    assert {"Makefile", "setup.py", "tools/smoke.py", "tests/tooling/test_packages.py"} <= names
    assert not [name for name in names if name.endswith((".so", ".pyc"))]


def test_earlier_packages_are_replaced_only_by_what_works(
    built: dist.Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "dist"
    output.mkdir()
    old = output / "x-0.0.9.tar.gz"
    old.touch()
    broken = True

    def try_all(*_: object) -> None:
        if broken:
            raise dist.DistError("it does not work")

    for name, value in {"OUTPUT": output, "build": lambda _: built, "found": list, "try_all": try_all}.items():
        monkeypatch.setattr(dist, name, value)
    monkeypatch.setattr(sys, "argv", ["dist"])
    with pytest.raises(SystemExit, match="dist: it does not work"):
        dist.main()
    assert list(output.iterdir()) == [old]
    broken = False
    dist.main()
    assert {path.name for path in output.iterdir()} == {path.name for path in built}
    assert built.wheel.name in capsys.readouterr().out


def test_a_step_that_fails_says_what_it_printed(tmp_path: Path) -> None:
    program = "import sys; print('on paper'); sys.exit('no ink')"
    with pytest.raises(dist.DistError, match=r"(?s)ended with status 1:.*no ink"):
        dist.run("-c", program, directory=tmp_path)
    with pytest.raises(dist.DistError, match="/nowhere/python -V did not run"):
        dist.run("-V", python="/nowhere/python")


def test_a_step_does_not_see_what_would_change_the_build(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYTHONPATH", "CC", "LDSHARED"):
        monkeypatch.setenv(name, "0")
    program = "import os; print(*[os.environ.get(name) for name in ('PYTHONPATH', 'CC', 'LDSHARED')])"
    assert dist.run("-c", program).split() == ["None", "None", "None"]
    assert dist.run("-c", program, variables=dist.NO_COMPILER).split() == ["None", "/bin/false", "None"]


def test_the_smoke_test_refuses_the_sources() -> None:
    done = subprocess.run(
        [sys.executable, "-P", smoke.__file__],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert f"{ROOT / 'diskcache_like'} is the project's source" in done.stderr


def test_the_smoke_test_passes_a_package_that_works(tmp_path: Path) -> None:
    smoke.check_core()
    smoke.check_processes(tmp_path / "cache")
    smoke.check_memoize(tmp_path / "cache")
    smoke.check_commands(tmp_path / "cache")


def test_no_operation_warns(tmp_path: Path) -> None:
    """As with `python -W error`, which also turns what the standard library thinks of our SQL into errors."""
    program = "import sys, pathlib; from tools import smoke; smoke.check_operations(pathlib.Path(sys.argv[1]))"
    command = [sys.executable, "-W", "error", "-c", program, str(tmp_path)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")


def test_interpreters_of_one_process_share_a_cache(tmp_path: Path) -> None:
    program = "import sys, pathlib; from tools import smoke; smoke.check_interpreters(pathlib.Path(sys.argv[1]))"
    command = [sys.executable, "-c", program, str(tmp_path)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def test_the_smoke_test_notices_a_slow_checksum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checksum, "SOURCE", "zlib")
    with pytest.raises(smoke.SmokeError, match="checksums are computed by zlib; expected zlib_ng"):
        smoke.check_core()


def test_the_smoke_test_notices_an_installation_that_is_slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [{"set": 1.4, "delete": 0.9, "get": 20.0}, {"set": 4.5, "delete": 3.8, "get": 15.0}]
    monkeypatch.setattr(smoke, "compare_with_diskcache", lambda _: found.pop(0))
    with pytest.raises(smoke.SmokeError, match=r"calls are \{'set': 1.4, .*expected \{'set': 2.5"):
        smoke.check_speed(tmp_path, tries=1)
    assert smoke.check_speed(tmp_path, tries=1)["set"] == 4.5


def test_the_smoke_test_compares_with_diskcache(tmp_path: Path) -> None:
    assert smoke.compare_with_diskcache(tmp_path).keys() == smoke.FASTER.keys()


def test_the_smoke_test_notices_files_and_versions_that_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "files", lambda _: [])
    with pytest.raises(smoke.SmokeError, match=r"not installed: LICENSE, METADATA, py.typed"):
        smoke.check_files()


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("raise SystemExit('lost')", "ended with status 1: lost"),
        ("", r"another process wrote 'new' and 2; this one reads \(.*'numbers'.*, 1\)"),
    ],
)
def test_the_smoke_test_notices_what_another_process_does_not_see(
    program: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(smoke, "OTHER_PROCESS", program)
    with pytest.raises(smoke.SmokeError, match=message):
        smoke.check_processes(tmp_path / "cache")


def test_wheels_are_built_for_and_tried_with_every_python_that_is_promised() -> None:
    classifiers = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["project"]["classifiers"]))
    promised = {f"cp{version.replace('.', '')}-*" for version in classifiers}
    assert promised | {"cp314t-*"} == set(WHEELS["build"])
    assert PROJECT["project"]["requires-python"] == f">={classifiers[0]}"
    assert (WHEELS["linux"]["archs"], WHEELS["macos"]["archs"]) == (["x86_64", "aarch64"], ["x86_64", "arm64"])


def test_wheels_are_tried_by_the_smoke_test() -> None:
    python, safe, script, *options = shlex.split(WHEELS["test-command"].replace("{project}", str(ROOT)))
    assert (python, safe, options) == ("python", "-P", [])
    assert Path(script) == Path(smoke.__file__)


def test_a_compiler_is_asked_for_only_where_none_works(monkeypatch: pytest.MonkeyPatch) -> None:
    assert build_backend.get_requires_for_build_wheel() == []
    for broken in ("/bin/false", "/nowhere/cc"):
        monkeypatch.setenv("CC", broken)
        assert build_backend.get_requires_for_build_editable() == [build_backend.ZIG]


def test_zig_compiles_where_nothing_else_does(monkeypatch: pytest.MonkeyPatch) -> None:
    def hook() -> str:
        return os.environ["CC"] + os.environ["LDSHARED"]

    for name, value in {"CC": "/bin/false", "LDSHARED": "gcc"}.items():
        monkeypatch.setenv(name, value)
    assert re.fullmatch(r"(\S*python\S* -m ziglang cc -mcpu=baseline( -shared)?){2}", build_backend.build(hook))


def test_a_build_that_fails_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def hook() -> str:
        raise SystemExit("error: No module named ziglang")

    monkeypatch.setenv("CC", "/bin/false")
    monkeypatch.setenv("LDSHARED", "")
    with pytest.raises(SystemExit, match=r"(?s)ziglang.*cannot be built here; install a C compiler \(Debian: apt-get"):
        build_backend.build(hook)


def test_what_cannot_be_built_is_refused_before_anything_is_downloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_backend, "HEADERS", Path("/nowhere/Python.h"))
    with pytest.raises(SystemExit, match=r"without /nowhere/Python.h; on Debian: apt-get install python3-dev"):
        build_backend.get_requires_for_build_wheel()
