"""Packages: what `make dist` refuses to give away, what the smoke test notices, and which wheels a release has.

`make dist` itself builds, installs and tries them; it takes half a minute and pip's index.
"""

from __future__ import annotations

import io
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

from diskcache_like.coherence import native
from tools import dist, smoke

from ..support.project import ROOT

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
WHEELS = PROJECT["tool"]["cibuildwheel"]
MODULES = ("diskcache_like/__init__.py", "diskcache_like/py.typed")
HELPER = "diskcache_like/coherence/_native.abi3.so"


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
        wheel(tmp_path, "cp311-abi3-linux_x86_64", *MODULES, HELPER),
        wheel(tmp_path, "py3-none-any", *MODULES),
    )


def test_whole_packages_pass(built: dist.Built) -> None:
    dist.check(built)


def test_an_archive_that_lacks_a_file_is_refused(built: dist.Built, tmp_path: Path) -> None:
    lacking = built._replace(source=archive(tmp_path, *MODULES))
    with pytest.raises(dist.DistError, match=r"x-0.1.0.tar.gz lacks Makefile; see MANIFEST.in"):
        dist.check(lacking)


def test_an_archive_with_a_stray_file_is_refused(built: dist.Built, tmp_path: Path) -> None:
    stray = built._replace(source=archive(tmp_path, *MODULES, "Makefile", "tests/notes.txt"))
    with pytest.raises(dist.DistError, match=r"x-0.1.0.tar.gz holds tests/notes.txt"):
        dist.check(stray)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (MODULES[:1], "py3-none-any.whl lacks diskcache_like/py.typed"),
        ((*MODULES, "tests/__init__.py"), "py3-none-any.whl holds tests/__init__.py"),
        ((*MODULES, HELPER), "py3-none-any.whl holds 1 compiled helpers; expected 0"),
    ],
)
def test_a_wheel_that_is_not_the_package_is_refused(
    names: tuple[str, ...], message: str, built: dist.Built, tmp_path: Path
) -> None:
    with pytest.raises(dist.DistError, match=re.escape(message)):
        dist.check(built._replace(pure=wheel(tmp_path, "py3-none-any", *names)))


def test_a_native_wheel_without_the_helper_is_refused(built: dist.Built, tmp_path: Path) -> None:
    with pytest.raises(dist.DistError, match="holds 0 compiled helpers; expected 1"):
        dist.check(built._replace(native=wheel(tmp_path, "cp311-abi3-linux_x86_64", *MODULES)))


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
    assert built.pure.name in capsys.readouterr().out


def test_a_step_that_fails_says_what_it_printed(tmp_path: Path) -> None:
    program = "import sys; print('on paper'); sys.exit('no ink')"
    with pytest.raises(dist.DistError, match=r"(?s)ended with status 1:.*no ink"):
        dist.run("-c", program, directory=tmp_path)
    with pytest.raises(dist.DistError, match="/nowhere/python -V did not run"):
        dist.run("-V", python="/nowhere/python")


def test_a_step_does_not_see_what_would_change_the_build(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYTHONPATH", "CC", "DISKCACHE_LIKE_NATIVE"):
        monkeypatch.setenv(name, "0")
    program = "import os; print(*[os.environ.get(name) for name in ('PYTHONPATH', 'CC', 'DISKCACHE_LIKE_NATIVE')])"
    assert dist.run("-c", program).split() == ["None", "None", "None"]
    assert dist.run("-c", program, variables=dist.NO_COMPILER).split() == ["None", "/bin/false", "None"]


def test_the_smoke_test_refuses_the_sources() -> None:
    done = subprocess.run(
        [sys.executable, "-P", smoke.__file__, "--helper", "no"],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert f"{ROOT / 'diskcache_like'} is the project's source" in done.stderr


def test_the_smoke_test_passes_a_package_that_works(tmp_path: Path) -> None:
    smoke.check_helper(native.load() is not None)
    smoke.check_processes(tmp_path / "cache")
    smoke.check_memoize(tmp_path / "cache")
    smoke.check_commands(tmp_path / "cache")


def test_the_smoke_test_notices_a_helper_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "load", lambda: None)
    smoke.check_helper(wanted=False)
    with pytest.raises(smoke.SmokeError, match="the C helper is not loaded; expected it"):
        smoke.check_helper(wanted=True)


def test_the_smoke_test_notices_a_helper_that_should_not_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "load", lambda: object())
    with pytest.raises(smoke.SmokeError, match="the C helper is loaded; expected none"):
        smoke.check_helper(wanted=False)


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
    assert (python, safe, options) == ("python", "-P", ["--helper", "yes"])
    assert Path(script) == Path(smoke.__file__)
    assert WHEELS["test-extras"] == ["native"], "without cffi the helper is not loaded"
