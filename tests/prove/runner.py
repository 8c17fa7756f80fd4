"""Run proofs one after the other, each in a process group of its own that is gone when it has ended."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from .proof import CannotRun, Findings, Proof, Unreachable

LOOK_SECONDS = 1.0  # between looks whether a silent proof is still there
PATIENCE = 120.0  # seconds beyond its time after which a proof counts as hung


@dataclass
class Outcome:
    """What became of one proof."""

    name: str
    proof: Proof
    seconds: float = 0.0
    findings: Findings = field(default_factory=Findings)
    skipped: str = ""
    excused: bool = False  # of a skipped one: nothing that should be there is lacking
    ended: str = ""  # how the proof's process ended, if not by itself

    @property
    def held(self) -> bool:
        """Whether the promise held; of a control, whether a case found the violation that it must."""
        if self.proof.control:
            return not (self.skipped or self.ended) and len(self.unwanted) < len(self.findings.violations)
        return not (self.skipped or self.ended or self.unwanted)

    @property
    def unwanted(self) -> list[tuple[int, str]]:
        """The violations, without what a control has to find."""
        return [(case, text) for case, text in self.findings.violations if not self.proof.sought(text)]


class Runner:
    """Runs proofs of one catalogue, a module, with the same seed; `note` hears how far the present one is."""

    def __init__(
        self,
        seed: int,
        note: Callable[[Outcome], None] = lambda outcome: None,
        catalogue: str = "tests.prove.catalogue",
        patience: float = PATIENCE,
    ) -> None:
        self._seed, self._note, self._catalogue, self._patience = seed, note, catalogue, patience
        self._space = tempfile.TemporaryDirectory(prefix="prove-")
        self._layers: dict[Callable[[Path], Path], Path] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._space.cleanup()

    def run(self, name: str, proof: Proof, seconds: float, only: int | None = None) -> Outcome:
        """Run one proof for `seconds`, or its one case `only`."""
        outcome = Outcome(name, proof)
        try:
            environment = self._environment(proof)
        except CannotRun as reason:
            outcome.skipped, outcome.excused = str(reason), isinstance(reason, Unreachable)
            return outcome
        began = time.monotonic()  # what is compiled first takes nothing of the time of the others
        with tempfile.TemporaryFile() as place:
            place.truncate(8)
            reading, writing = os.pipe()
            arguments = [self._catalogue, name, str(self._seed), str(seconds), "" if only is None else str(only)]
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.prove.inner", *arguments, str(writing), str(place.fileno())],
                pass_fds=(writing, place.fileno()),
                env=environment,
                start_new_session=True,
            )
            os.close(writing)
            try:
                status = self._follow(process, outcome, reading, seconds + self._patience)
            finally:
                os.close(reading)
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            self._judge_end(outcome, status, int.from_bytes(os.pread(place.fileno(), 8, 0), "little"))
        outcome.seconds = time.monotonic() - began
        return outcome

    def _follow(self, process: subprocess.Popen[bytes], outcome: Outcome, pipe: int, patience: float) -> int | None:
        """Take in what the proof tells until it has ended; return how, None if it has not after `patience` seconds."""
        deadline, text = time.monotonic() + patience, b""
        with selectors.DefaultSelector() as selector:
            selector.register(pipe, selectors.EVENT_READ)
            while (left := deadline - time.monotonic()) > 0:
                # Children of a proof that died may hold its end of the pipe, so that is not what tells its end.
                if not selector.select(min(left, LOOK_SECONDS)):
                    if process.poll() is not None:
                        break
                    continue
                piece = os.read(pipe, 1 << 16)
                if not piece:
                    break
                *lines, text = (text + piece).split(b"\n")
                for line in lines:
                    self._take(outcome, json.loads(line))
        with suppress(subprocess.TimeoutExpired):
            return process.wait(max(deadline - time.monotonic(), 0.0))
        return None

    def _take(self, outcome: Outcome, message: dict[str, Any]) -> None:
        outcome.skipped = message.get("skipped", outcome.skipped)
        if "findings" in message:
            outcome.findings = Findings(**message["findings"])
        self._note(outcome)

    def _environment(self, proof: Proof) -> dict[str, str]:
        environment = {**os.environ, "TMPDIR": self._space.name}  # what a killed proof leaves behind goes with it
        if make := proof.preload:
            if make not in self._layers:
                self._layers[make] = make(Path(self._space.name))
            # In front of what is there already, such as another version of SQLite.
            environment["LD_PRELOAD"] = " ".join(filter(None, (str(self._layers[make]), os.environ.get("LD_PRELOAD"))))
        return environment

    @staticmethod
    def _judge_end(outcome: Outcome, status: int | None, case: int) -> None:
        """Count an end that is not the proof's own as a violation in the case that it was in, also of a control."""
        if status == 0:
            return
        if status is None:
            how = "hung, and was killed"
        else:
            how = f"died of {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        outcome.ended = f"the process {how}"
        outcome.findings.violations.append((case, outcome.ended))
