"""A browser without a screen, told what to do through a pair of pipes (the DevTools protocol of Chromium)."""

from __future__ import annotations

import base64
import itertools
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from benchmarks.peers.install import BROWSERS
from benchmarks.peers.servers import dying_with_us

from .http_server import PATIENCE

POLL = 0.02  # seconds between looks at a page
# A sandbox needs rights that a container does not give, and the pages are the project's own.
OPTIONS = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-dev-shm-usage")


class MissingBrowser(Exception):
    """There is no browser here; the text says how to install it."""


def browser_program() -> str:
    """Return the path of a browser."""
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        raise MissingBrowser("no browser here; install it with: apt-get install chromium")
    return found


class Page:
    """A page in a browser."""

    def __init__(self, commands: IO[bytes], answers: IO[bytes]) -> None:
        self._commands, self._answers = commands, answers
        self._numbers, self._session = itertools.count(), ""
        target = self.do("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.do("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]

    def do(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Have the browser do something, and return what it answers."""
        number = next(self._numbers)
        command = {"id": number, "method": method, "params": parameters}
        if self._session:
            command["sessionId"] = self._session
        self._commands.write(json.dumps(command).encode() + b"\0")
        while True:
            answer = json.loads(self._read())
            if answer.get("id") == number:
                assert "error" not in answer, answer
                return dict(answer["result"])

    def _read(self) -> bytes:
        found = bytearray()
        while (byte := self._answers.read(1)) != b"\0":
            assert byte, "the browser has ended"
            found += byte
        return bytes(found)

    def value(self, script: str) -> Any:
        """Return what an expression in JavaScript is, in the page."""
        answer = self.do("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def awaited(self, script: str) -> Any:
        """Return what an expression is as soon as it is something true."""
        deadline = time.monotonic() + PATIENCE
        while not (found := self.value(script)):
            assert time.monotonic() < deadline, (
                f"{script} is {found!r}; the page: {self.value('document.body?.innerText')}"
            )
            time.sleep(POLL)
        return found

    def picture(self, path: Path) -> None:
        """Write what the page looks like."""
        path.write_bytes(base64.b64decode(self.do("Page.captureScreenshot")["data"]))


@contextmanager
def browser(directory: Path) -> Iterator[Page]:
    """Run a browser for a with-block, with a profile in a directory."""
    program, (theirs, commands), (answers, ours) = browser_program(), os.pipe(), os.pipe()
    # The browser reads from its descriptor 3 and writes to 4.
    shell = ["sh", "-c", f'exec "$@" 3</dev/fd/{theirs} 4>/dev/fd/{ours}', "sh"]
    command = [program, *OPTIONS, "--remote-debugging-pipe", f"--user-data-dir={directory}"]
    process = subprocess.Popen(
        [*dying_with_us(), *shell, *command],
        pass_fds=(theirs, ours),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(theirs)
    os.close(ours)
    with open(commands, "wb", buffering=0) as writing, open(answers, "rb") as reading:
        try:
            yield Page(writing, reading)
        finally:
            process.kill()
            process.wait()
