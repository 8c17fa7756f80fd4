"""The documentation: its code runs, its commands exist, and its reference names everything that is public."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import diskcache_like
from benchmarks.report.results import RESULTS
from diskcache_like.cli.main import parser
from diskcache_like.settings.definitions import DEFAULT_SETTINGS, OPTIONAL_SETTINGS
from tools.recipes import HOSTS
from tools.recipes import PAGE as RECIPES

from ..support.doc_blocks import Block, blocks, missing, needs, run
from ..support.project import ROOT

PAGES = sorted(path for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")) if "_build" not in path.parts)
LANGUAGES = {"", "python", "sh", "text", "html", "ini", "toml", "yaml", "dockerfile"}
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
EXTRAS = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def pages(language: str) -> list[Path]:
    return [page for page in PAGES if any(block.language == language for block in blocks(page))]


def apart(page: Path) -> set[str]:
    """Return the modules for which `make recipes` runs the blocks of a page."""
    return set(HOSTS) if page == RECIPES else set()


@pytest.mark.parametrize("page", pages("python"), ids=name_of)
def test_code_runs(page: Path, tmp_path: Path) -> None:
    lacking = sorted({module for block in blocks(page) for module in missing(block)} - apart(page))
    assert not (lacking and os.environ.get("CI")), f"{name_of(page)} cannot be run without {lacking}"
    work = tmp_path / "work"
    work.mkdir()
    home = {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "tests.support.doc_blocks", str(page)],
        env={**os.environ, **home, "PYTHONPATH": str(ROOT)},
        cwd=work,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_recipes_that_run_apart_are_there() -> None:
    for module in HOSTS:
        assert any(module in needs(block) for block in blocks(RECIPES)), module
    for block in blocks(RECIPES):
        assert set(needs(block)) <= set(HOSTS) or not set(needs(block)) & set(HOSTS), f"line {block.line} never runs"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_block_has_a_known_language(page: Path) -> None:
    assert {block.language for block in blocks(page)} <= LANGUAGES


@pytest.mark.parametrize("page", pages("python"), ids=name_of)
def test_code_that_is_not_run_compiles(page: Path) -> None:
    for block in blocks(page):
        if block.language == "python":
            compile(block.source, f"{name_of(page)}:{block.line}", "exec")


@pytest.mark.parametrize("page", pages("sh"), ids=name_of)
def test_commands_exist(page: Path) -> None:
    for block in blocks(page):
        if block.language == "sh":
            done = subprocess.run(["bash", "-n"], input=block.source, text=True, capture_output=True, check=False)
            assert done.returncode == 0, f"{name_of(page)}:{block.line}: {done.stderr}"
            for words in commands(block):
                assert is_known(words), f"{name_of(page)}:{block.line}: {shlex.join(words)}"


def commands(block: Block) -> list[list[str]]:
    """Return the words of each line of a shell block, without comments."""
    lines = block.source.replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def is_known(words: list[str]) -> bool:
    """Tell whether a command of this project exists and takes these arguments; True for commands of others."""
    command, *rest = words
    if command == "make":
        return all(word in TARGETS for word in rest if "=" not in word)
    if command == "pip":
        extras = re.findall(r"\[([\w,-]+)\]", " ".join(rest))
        return set(",".join(extras).split(",")) - {""} <= EXTRAS
    if words[:3] == ["python", "-m", "diskcache_like"] or command == "diskcache-like":
        return takes(rest[2:] if command == "python" else rest)
    return True


def takes(arguments: list[str]) -> bool:
    """Tell whether the command line takes these arguments; what follows a pipe or a redirection is another's."""
    end = next((n for n, word in enumerate(arguments) if word in {"|", ">", "<", "||", "&&"}), len(arguments))
    try:
        parser().parse_args(arguments[:end])
    except SystemExit as ended:
        return ended.code == 0
    except argparse.ArgumentError:
        return False
    return True


UNCHECKED = re.compile(r"\S  # (?:\d[\d_.]*$|(?:True|False|None)$|['\"\[{(])")


@pytest.mark.parametrize("page", pages("python"), ids=name_of)
def test_every_result_that_a_page_shows_is_checked(page: Path) -> None:
    """It stands behind `# ->`, for a result in a plain comment is not compared with anything."""
    for block in blocks(page):
        if block.language == "python":
            found = [line for line in block.source.splitlines() if UNCHECKED.search(line)]
            assert not found, f"{name_of(page)}:{block.line}: {found}"


DOCUMENTED = re.compile(r"^\.\. (?:auto|py:)(\w+):: ([\w.]+)(?:\(\))?\n((?:   .*\n)*)", re.MULTILINE)
METHODS_ELSEWHERE = {  # of classes whose members are listed one by one: what another page or another project documents
    "DjangoCache": {
        "get_or_set",
        "decr_version",
        "validate_key",
        "key_prefix",
        "version",
        "key_func",
        "default_timeout",
    },
}


def documented() -> dict[str, str]:
    """Return every name that the reference documents, and the options of its directive."""
    found: dict[str, str] = {}
    for page in (ROOT / "docs" / "reference").glob("*.md"):
        for _, name, options in DOCUMENTED.findall(page.read_text()):
            assert name not in found, f"{name} is documented twice"
            found[name] = options
    return found


def attributes(name: str) -> set[str]:
    """Return the public attributes of a class that the reference has to name, without settings and inherited ones."""
    kind = getattr(diskcache_like, name)
    inherited = set(dir(diskcache_like.Cache)) - set(vars(kind)) if name == "FanoutCache" else set()
    settings = {each for each in dir(kind) if each in DEFAULT_SETTINGS | dict.fromkeys(OPTIONAL_SETTINGS)}
    public = {each for each in dir(kind) if not each.startswith(("_", "disk_"))}
    twins = {each for each in public if each[0] == "a" and each[1:] in public}
    return public - inherited - settings - twins - METHODS_ELSEWHERE.get(name, set())


def test_reference_has_every_public_name() -> None:
    names = documented()
    assert set(diskcache_like.__all__) - {"__version__"} <= set(names)
    for name in ("Cache", "FanoutCache", "DjangoCache"):
        assert ":members:" not in names[name]
        lacking = {f"{name}.{each}" for each in attributes(name)} - set(names)
        assert not lacking, f"docs/reference lacks {sorted(lacking)}"


def test_settings_page_has_every_setting() -> None:
    told = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs" / "settings.md").read_text(), re.MULTILINE)
    assert set(DEFAULT_SETTINGS) | OPTIONAL_SETTINGS <= set(told)


def test_reference_of_other_classes_lists_their_members() -> None:
    names = documented()
    for name in ("Averager", "BoundedSemaphore", "Deque", "Disk", "Index", "JSONDisk", "Lock", "RLock", "Memoized"):
        assert ":members:" in names[name], name


LINK = re.compile(r"\]\(([^()\s#:]*)(?:#([^()\s]*))?\)")


def anchors(page: Path) -> set[str]:
    """Return what a link to a part of a page may name, as a forge makes it from the headings."""
    prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", prose, re.MULTILINE)
    named = re.findall(r"^\(([\w-]+)\)=$", prose, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings} | set(named)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_leads_somewhere(page: Path) -> None:
    """Sphinx knows the pages below docs/ only, and not what a forge shows."""
    for path, anchor in LINK.findall(page.read_text()):
        target = page.parent / path if path else page
        assert target.exists(), f"{name_of(page)}: {path}"
        assert not anchor or anchor in anchors(target), f"{name_of(page)}: {path}#{anchor}"


PLACE = re.compile(r"<!-- (\w+):begin -->\n(.*?)<!-- \1:end -->", re.DOTALL)


def test_what_is_measured_once_reads_the_same_on_each_page() -> None:
    found: dict[str, set[str]] = {}
    for page in PAGES:
        for name, text in PLACE.findall(page.read_text()):
            if name != RESULTS:
                found.setdefault(name, set()).add(text)
    assert {"objectives", "awaited", "machines", "django", "proofs", "overview"} <= set(found)
    assert [name for name, texts in found.items() if len(texts) > 1] == []


PAGE_THAT_LIES = """
```python
1 + 1  # -> {value}
int("x")  # raises {error}
```

<!-- file: greet.py -->
```python
print("hello")
```

<!-- run -->
```sh
python greet.py
```

<!-- output -->
```text
{output}
```
"""


@pytest.mark.parametrize(
    ("change", "is_true"),
    [({}, True), ({"value": "3"}, False), ({"error": "KeyError"}, False), ({"output": "goodbye"}, False)],
    ids=["as it is", "value", "error", "output"],
)
def test_a_page_that_lies_is_noticed(
    change: dict[str, str], is_true: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    page = tmp_path / "page.md"
    page.write_text(PAGE_THAT_LIES.format(**{"value": "2", "error": "ValueError", "output": "hello", **change}))
    if is_true:
        run(page)
    else:
        with pytest.raises(AssertionError, match=r"page\.md:"):
            run(page)
