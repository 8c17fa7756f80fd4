"""Code blocks of Markdown pages: found, and run in order, each page in a directory and a process of its own.

A comment on the line before a block says what is special about it:

- ``<!-- not run: REASON -->``: compiled or parsed only.
- ``<!-- needs: MODULE, MODULE -->``: run where these modules are installed. With ``redis-server`` among them, the page
  is run with a server of its own, whose address stands in each block in the place of `ADDRESS`.
- ``<!-- file: NAME -->``: not run but written to that file, which later blocks use.
- ``<!-- run -->``: a shell block that is run; the others are only checked.
- ``<!-- output -->``: a text block that is what the shell block before it printed.

A comment that begins with ``<!-- python`` is a block that readers do not see. ``# -> TEXT`` behind a statement says what
it prints or, if it prints nothing, the `repr` of its value; ``# raises NAME`` says that it raises that error.

``python -m tests.support.doc_blocks PAGE`` runs one page in the working directory.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import io
import linecache
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

_FENCE = re.compile(r"^(?P<fence>`{3,})(?P<language>[\w-]*)\n(?P<source>.*?)^(?P=fence)$", re.DOTALL | re.MULTILINE)
_HIDDEN = re.compile(r"^<!-- python\n(?P<source>.*?)^-->$", re.DOTALL | re.MULTILINE)
_MARK = re.compile(r"<!-- (not run|needs|file|run|output)(?:: (.*?))? -->\n+\Z")
SERVER = "redis-server"
ADDRESS = "redis://redis.internal:6379/0"  # as pages have it
_EXPECTED = re.compile(r"#\s+(->|raises) (.+)$")


class Block(NamedTuple):
    """One code block of a page."""

    line: int  # of its first line of code
    language: str
    source: str
    mark: str  # what the comment before it says, or ''
    argument: str


def blocks(page: Path) -> list[Block]:
    """Return the code blocks of a page in order."""
    text = page.read_text()
    found = []
    for match in sorted((*_FENCE.finditer(text), *_HIDDEN.finditer(text)), key=lambda match: match.start()):
        mark = _MARK.search(text, 0, match.start())
        language = match.groupdict().get("language", "python") or ""
        line = text.count("\n", 0, match.start("source")) + 1
        found.append(Block(line, language, match["source"], *((mark[1], mark[2] or "") if mark else ("", ""))))
    return found


def missing(block: Block) -> list[str]:
    """Return what a block needs and is not installed."""
    return [name for name in needs(block) if not _is_there(name)]


def needs(block: Block) -> list[str]:
    """Return what a block needs to be run."""
    return block.argument.split(", ") if block.mark == "needs" else []


def _is_there(name: str) -> bool:
    return (shutil.which(name) if name == SERVER else importlib.util.find_spec(name)) is not None


def run(page: Path) -> None:
    """Run the blocks of a page in the working directory; raise AssertionError or what they raise.

    A page that needs a server is not run where there is none.
    """
    found = blocks(page)
    users = [block for block in found if SERVER in needs(block)]
    if not users:
        _run_blocks(page, found)
    elif not any(map(missing, users)):
        from .redis_servers import redis_server  # late: it needs redis-py

        with redis_server() as server:
            _run_blocks(page, [block._replace(source=block.source.replace(ADDRESS, server.url)) for block in found])


def _run_blocks(page: Path, found: list[Block]) -> None:
    namespace: dict[str, Any] = {"__name__": "__main__"}
    printed = ""
    for block in found:
        where = f"{page.name}:{block.line}"
        if block.mark == "not run" or missing(block):
            continue
        if block.mark == "file":
            Path(block.argument).write_text(block.source)
        elif block.mark == "run":
            printed = _printed_by_shell(block.source, where)
        elif block.mark == "output":
            assert printed == block.source, f"{where}: expected {block.source!r}, printed was {printed!r}"
        elif block.language == "python":
            _run_python(block, page, namespace)


def _printed_by_shell(source: str, where: str) -> str:
    paths = (str(Path(sys.executable).parent), os.environ["PATH"])
    done = subprocess.run(
        ["bash", "-e", "-c", source],
        env={**os.environ, "PATH": os.pathsep.join(paths)},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{where}: exit status {done.returncode}"
    return done.stdout


def _run_python(block: Block, page: Path, namespace: dict[str, Any]) -> None:
    """Run a block statement by statement, with the page's line numbers in tracebacks."""
    lines = block.source.splitlines()
    name = f"{page}:{block.line}"
    linecache.cache[name] = (len(block.source), None, [line + "\n" for line in lines], name)  # for inspect, too
    for statement in ast.parse(block.source).body:
        assert statement.end_lineno is not None
        expected = _EXPECTED.search(lines[statement.end_lineno - 1])
        kind, text = expected.groups() if expected else ("", "")
        where = f"{page.name}:{block.line + statement.lineno - 1}"
        with _raising(text if kind == "raises" else "", where):
            seen = _seen(statement, name, namespace)
            assert kind != "->" or seen == text, f"{where}: expected {text!r}, got {seen!r}"


def _seen(statement: ast.stmt, name: str, namespace: dict[str, Any]) -> str:
    """Run a statement and return what it prints, or else the `repr` of its value."""
    value = None
    with contextlib.redirect_stdout(io.StringIO()) as output:
        if isinstance(statement, ast.Expr):
            value = eval(compile(ast.Expression(statement.value), name, "eval"), namespace)
        else:
            exec(compile(ast.Module([statement], []), name, "exec"), namespace)
    return output.getvalue().strip() or repr(value)


@contextlib.contextmanager
def _raising(error: str, where: str) -> Iterator[None]:
    """Demand that the body raises the error of that name, if one is named."""
    if not error:
        yield
        return
    raised: Exception | None = None
    try:
        yield
    except Exception as caught:
        raised = caught
    assert type(raised).__name__ == error, f"{where}: expected {error}, got {raised!r}"


if __name__ == "__main__":
    run(Path(sys.argv[1]))
