"""Run proofs, each in a process group of its own that is gone when it has ended, so that any end of it can be told.

What a proof finds goes as lines of JSON to a pipe. The case that it is in goes into a file that both sides map: it is
known even if the interpreter dies in it.
"""

from __future__ import annotations

import importlib
import json
import mmap
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from .proof import WHOLE, CannotRun, Findings, Part, Proof, Trial, Unreachable

TELL_SECONDS = 0.2  # between what is told of how far a proof is
LOOK_SECONDS = 1.0  # between looks whether a silent proof is still there
PATIENCE = 120.0  # seconds beyond its time, and a control beyond its patience, after which it counts as hung


@dataclass
class Outcome:
    """What became of one proof."""

    name: str
    proof: Proof
    seconds: float = 0.0
    asked: float = 0.0  # seconds, by which some proofs draw how many take part
    share: Part = WHOLE
    findings: Findings = field(default_factory=Findings)
    skipped: str = ""
    excused: bool = False  # of a skipped one: nothing that should be there is lacking
    ended: str = ""  # how the proof's process ended, if not by itself

    def gather(self, inners: Sequence[Inner]) -> None:
        """Put together what the processes found and how they ended."""
        self.findings = Findings()
        for inner in inners:
            self.findings.add(inner.findings)
            self.skipped, self.ended = inner.skipped or self.skipped, inner.ended or self.ended

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


class Inner:
    """A process that runs a proof, or a part of it, and what it has told so far; all of its group ends with it."""

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        self.findings, self.skipped, self.ended = Findings(), "", ""
        self._text = b""
        self._place = tempfile.TemporaryFile()  # noqa: SIM115 - closed at the end of the block
        self._place.truncate(8)
        self.pipe, writing = os.pipe()
        os.set_blocking(self.pipe, False)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "prove.runner", *arguments, str(writing), str(self._place.fileno())],
            pass_fds=(writing, self._place.fileno()),
            env=environment,
            start_new_session=True,
        )
        os.close(writing)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.pipe)
        self._kill()
        self._place.close()

    def _kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def take(self) -> bool:
        """Take in what was told by now; tell whether more may come."""
        # Children of a proof that died may hold its end of the pipe, so that is not what tells its end. It is asked
        # for first: what was told before the end is then in the pipe.
        has_ended = self._process.poll() is not None
        while True:
            try:
                piece = os.read(self.pipe, 1 << 16)
            except BlockingIOError:
                return not has_ended
            if not piece:
                return False
            *lines, self._text = (self._text + piece).split(b"\n")
            for line in lines:
                message: dict[str, Any] = json.loads(line)
                self.skipped = message.get("skipped", self.skipped)
                if "findings" in message:
                    self.findings = Findings(**message["findings"])

    def judge_end(self, patience: float) -> None:
        """Count an end that is not the proof's own as a violation in the case that it was in, also of a control."""
        try:
            status = self._process.wait(patience)
        except subprocess.TimeoutExpired:
            how = "hung, and was killed"
        else:
            if status == 0:
                return
            how = f"died of {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        self.ended = f"the process {how}"
        case = int.from_bytes(os.pread(self._place.fileno(), 8, 0), "little")
        self.findings.violations.append((case, self.ended))


class Runner:
    """Runs proofs of one catalogue, a module, with the same seed; `note` hears how far the present one is.

    Of what can be counted it runs its `share`. Controls are run whole: each run has to show that it is not blind.
    """

    def __init__(
        self,
        seed: int,
        note: Callable[[Outcome], None] = lambda outcome: None,
        catalogue: str = "prove.catalogue",
        patience: float = PATIENCE,
        share: Part = WHOLE,
    ) -> None:
        self._seed, self._note, self._catalogue, self._patience = seed, note, catalogue, patience
        self._share = share
        self._space = tempfile.TemporaryDirectory(prefix="prove-")
        self._layers: dict[Callable[[Path], Path], Path] = {}
        self.is_stopped = False
        self._making = threading.Lock()  # guards `_layers`, so that each library is made once

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._space.cleanup()

    def stop(self) -> None:
        """End soon what other threads run, and kill its processes."""
        self.is_stopped = True

    def run(self, name: str, proof: Proof, seconds: float, only: int | None = None) -> Outcome:
        """Run one proof for `seconds`, or its one case `only`."""
        share = WHOLE if proof.control else self._share
        outcome = Outcome(name, proof, asked=seconds, share=share)
        try:
            environment = self._environment(proof)
        except CannotRun as reason:
            outcome.skipped, outcome.excused = str(reason), isinstance(reason, Unreachable)
            return outcome
        began = time.monotonic()  # what is compiled first takes nothing of its time
        parts = len(os.sched_getaffinity(0)) if proof.parallel and only is None else 1
        asked = [self._catalogue, name, str(self._seed), str(seconds), "" if only is None else str(only)]
        with ExitStack() as stack:
            inners = [
                stack.enter_context(Inner([*asked, *map(str, share.split(number, parts))], environment))
                for number in range(parts)
            ]
            longest = max(seconds, proof.patience) if proof.control else seconds
            self._follow(inners, outcome, began + longest + self._patience)
        outcome.seconds = time.monotonic() - began
        return outcome

    def _follow(self, inners: Sequence[Inner], outcome: Outcome, deadline: float) -> None:
        """Take in what the processes tell until all have ended, or the deadline has passed."""
        told = set(inners)
        with selectors.DefaultSelector() as selector:
            for inner in inners:
                selector.register(inner.pipe, selectors.EVENT_READ)
            while told and not self.is_stopped and (left := deadline - time.monotonic()) > 0:
                selector.select(min(left, LOOK_SECONDS))
                for inner in [each for each in told if not each.take()]:
                    told.remove(inner)
                    selector.unregister(inner.pipe)
                outcome.gather(inners)
                self._note(outcome)
        for inner in inners:
            inner.judge_end(0.0 if self.is_stopped else max(deadline - time.monotonic(), 0.0))
        outcome.gather(inners)

    def _environment(self, proof: Proof) -> dict[str, str]:
        environment = {**os.environ, "TMPDIR": self._space.name}  # what a killed proof leaves behind goes with it
        if make := proof.preload:
            with self._making:
                if make not in self._layers:
                    self._layers[make] = make(Path(self._space.name))
            # In front of what is there already, such as another version of SQLite.
            environment["LD_PRELOAD"] = " ".join(filter(None, (str(self._layers[make]), os.environ.get("LD_PRELOAD"))))
        return environment


# -- in the process of a proof ----------------------------------------------------------------------------------------


class Telling:
    """Tell the outside how far a proof is."""

    def __init__(self, pipe: int, place: int) -> None:
        self._pipe = open(pipe, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - lives as long as the process
        self._place = mmap.mmap(place, 8)
        self._next = 0.0

    def __call__(self, case: int, findings: Findings) -> None:
        """Note the case; tell what was found so far, but not too often."""
        self._place[:8] = case.to_bytes(8, "little")
        if time.monotonic() >= self._next:
            self.tell(findings=asdict(findings))
            self._next = time.monotonic() + TELL_SECONDS

    def tell(self, **message: Any) -> None:
        self._pipe.write(json.dumps(message) + "\n")
        self._pipe.flush()


def main(
    catalogue: str, name: str, seed: str, seconds: str, only: str, number: str, of: str, pipe: str, place: str
) -> None:
    """Run a proof of the module `catalogue`, or that part of it, and tell what it found."""
    telling = Telling(int(pipe), int(place))
    proof: Proof = importlib.import_module(catalogue).PROOFS[name]
    trial = Trial(int(seed), float(seconds), int(only) if only else None, part=Part(int(number), int(of)), note=telling)
    if proof.control:
        trial.sought, trial.patience = proof.sought, proof.patience
    with trial:
        try:
            proof.run(trial)
        except CannotRun as reason:
            telling.tell(skipped=str(reason))
        telling.tell(findings=asdict(trial.findings))


if __name__ == "__main__":
    main(*sys.argv[1:])
