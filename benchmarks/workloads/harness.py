"""Run scenarios: load every subject, let them take turns, and leave out one that fails, and no other."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.command import progress
from benchmarks.crew import Crew, Gate
from benchmarks.measure import Calls, Costs, alternate, amount, awake, measure_costs
from benchmarks.peers.catalogue import SUBJECTS, Available, Candidate, available
from benchmarks.peers.spec import BenchmarkError, MissingFeature, MissingSubject, Spec
from benchmarks.report.machine import machine_facts
from benchmarks.report.record import Absence, Counts, Record, Trial
from benchmarks.usage import disk_bytes
from benchmarks.workloads.scenarios import Scenario
from benchmarks.workloads.trial import Plan, Report, load, script, work
from benchmarks.workspace import Workspace, workspace

Result = TypeVar("Result")
LOADING = 600.0  # seconds of patience with a subject that loads a million entries
PATIENCE = 60.0  # seconds beyond those of its passes without a word from a trial


@dataclass(frozen=True)
class Amounts:
    """How much is measured: in each pass of each process at most `operations` calls and at most `seconds`."""

    repeats: int = amount(5, "repetitions of each trial")
    operations: int = amount(100_000, "most calls of a process in a pass")
    seconds: float = amount(0.1, "most seconds of a pass")
    processes: int = amount(8, "most processes at once")
    largest: int = amount(1_000_000, "most entries of the growth scenario; 10_000_000 takes minutes and gigabytes more")


@dataclass
class Harness:
    """One run: what it does goes into `record`, how far it is to `note`."""

    record: Record
    amounts: Amounts
    costs: Costs
    workspace: Workspace
    note: Callable[[str, float], None] = lambda text, fraction: None
    catalogue: Mapping[str, Candidate] = field(default_factory=lambda: SUBJECTS)
    places: dict[str, Path] = field(default_factory=dict)

    def run(self, scenarios: Mapping[str, Scenario], chosen: Sequence[str]) -> Iterator[str]:
        """Measure the chosen subjects in every scenario at every step; yield each scenario's name when it is done.

        `places` then has the directories of its last step, by subject.
        """
        turns = [(name, step) for name, one in scenarios.items() for step in steps_of(one, self.amounts)]
        for number, (name, step) in enumerate(turns):
            scenario = scenarios[name]
            subjects = [subject for subject in scenario.subjects_at(step) if subject in chosen]
            with available(subjects, self.workspace, scenario.megabytes, self.catalogue) as found:
                for absence in found.absences:
                    self.leave_out(absence)
                _Step(self, name, scenario, step).run(found, number / len(turns), 1 / len(turns))
            if (name, step) == turns[-1] or turns[number + 1][0] != name:
                yield name
            self.workspace.discard(*self.places.values())
            self.places.clear()

    def leave_out(self, absence: Absence) -> None:
        """Note once that a subject is left out."""
        if absence not in self.record.absences:
            self.record.absences.append(absence)


@dataclass
class _Step:
    """One scenario at one step."""

    harness: Harness
    name: str
    scenario: Scenario
    step: int

    def run(self, found: Available, done: float, share: float) -> None:
        """Load all, then repeat in turns; a subject that fails once is not asked again."""
        harness, repeats = self.harness, self.harness.amounts.repeats
        title = f"{self.name} {self.step:,}" if self.step else self.name
        with self._scripts(found.specs):
            made = {name: self._plan(name, spec, found) for name, spec in found.specs.items()}
            harness.places |= {name: plan.directory for name, plan in made.items()}
            plans = dict[str, Plan]()
            for name, plan in made.items():
                harness.note(f"{title}: loading {name}", done)
                with self._alone(name):
                    _crew_of([plan], load, LOADING)
                    plans[name] = plan
            turns = len(plans) * repeats
            for turn, (repetition, name) in enumerate(alternate(repeats, list(plans))):
                if name in plans:
                    harness.note(f"{title}: {name}, {repetition + 1} of {repeats}", done + share * turn / turns)
                    with self._alone(name, plans):
                        harness.record.trials.append(self._trial(name, plans[name], repetition))

    @contextmanager
    def _scripts(self, names: Iterable[str]) -> Iterator[None]:
        """Make the scripts before the workers are forked, which then share them."""
        for workload in {self.scenario.workload_of(name, self.step) for name in names}:
            for number in range(self._processes):
                script(workload, number, self.harness.amounts.operations)
        gc.collect()
        gc.freeze()  # a collection in a worker would copy what it shares with this process
        try:
            yield
        finally:
            script.cache_clear()
            gc.unfreeze()

    @contextmanager
    def _alone(self, name: str, plans: dict[str, Plan] | None = None) -> Iterator[None]:
        """Let what a subject fails with concern that subject alone, which is left out from here on."""
        try:
            yield
        except MissingSubject as missing:
            self.harness.leave_out(Absence(name, str(missing)))
        except MissingFeature as missing:
            self.harness.leave_out(Absence(name, str(missing), self.name))
        except (BenchmarkError, OSError) as error:
            last = (str(error).strip().splitlines() or ["without a word"])[-1]
            where = f"at step {self.step:,}: " if self.step else ""
            self.harness.leave_out(Absence(name, where + last, self.name, failed=True))
            if plans:
                del plans[name]

    @property
    def _processes(self) -> int:
        return self.scenario.processes(self.step, self.harness.amounts.processes)

    def _plan(self, name: str, spec: Spec, found: Available) -> Plan:
        """Return what a lone worker does with the subject; each subject keeps one directory for all repetitions."""
        amounts, scenario = self.harness.amounts, self.scenario
        candidate = self.harness.catalogue[name]
        server = found.servers.get(candidate.server or "")
        return Plan(
            spec.having(objects=scenario.objects, **scenario.settings.get(name, {})),
            self.harness.workspace.fresh(re.sub(r"\W+", "-", f"{self.name}-{name}")),
            scenario.workload_of(name, self.step),
            amounts.operations,
            amounts.seconds * scenario.weight,
            pace=scenario.pace(self.step),
            may_miss=scenario.may_miss,
            server=server.process.pid if server else None,
            private=not candidate.shared,
        )

    def _trial(self, name: str, plan: Plan, repetition: int) -> Trial:
        """Run one repetition."""
        processes = self._processes
        plans = [replace(plan, number=number, processes=processes) for number in range(processes)]
        reports = _crew_of(plans, work, PATIENCE + 3 * plan.seconds)
        cost, keys = plan.workload.cost(self.harness.costs), plan.workload.per_call
        return Trial(
            scenario=self.name,
            subject=name,
            repetition=repetition,
            processes=processes,
            step=self.step,
            seconds=(max(one.ended for one in reports) - min(one.began for one in reports)) / 1e9,
            operations=sum(one.operations for one in reports) * keys,
            calls={
                kind: Calls.of((sample - cost) / keys for report in reports for sample in report.calls[kind])
                for kind in plan.workload.kinds
            },
            disk_bytes=disk_bytes(plan.directory) if plan.directory.exists() else 0,
            **_totals(reports),
        )


def _crew_of(plans: Sequence[Plan], job: Callable[[Gate, Plan], Result], patience: float) -> list[Result]:
    """Run one job in fresh processes, so that no trial finds another's memory, threads or ruins."""
    with Crew(len(plans), "fork") as crew:
        return crew.run(job, plans, patience)


def _totals(reports: Sequence[Report]) -> dict[str, Any]:
    """Add up what the workers counted; two increments of a counter that returned the same value are one too few."""
    totals = {each.name: sum(getattr(one, each.name) for one in reports) for each in fields(Counts)}
    counted = [answer for one in reports for answer in one.counted]
    totals["wrong"] += len(counted) - len(set(counted))
    return totals


def steps_of(scenario: Scenario, amounts: Amounts) -> list[int]:
    """Return the steps that the amounts allow; beyond a million entries each step is ten times the one before."""
    unit, steps = scenario.facts.step, list(scenario.steps)
    if unit == "processes":
        return [step for step in steps if step <= amounts.processes]
    if unit == "entries":
        while steps[-1] * 10 <= amounts.largest:
            steps.append(steps[-1] * 10)
        return [step for step in steps if step <= amounts.largest]
    return steps


def recorded(
    scenarios: Mapping[str, Scenario],
    subjects: Iterable[str],
    amounts: Amounts,
    directory: Path,
    path: Path,
    then: Callable[[Record, str], None] = lambda record, name: None,
) -> Record:
    """Measure scenarios, with the processors kept awake, and save what was found, also if the run is interrupted.

    `then` is called when a scenario is done.
    """
    with workspace(directory) as space, awake(), progress() as note:
        costs = measure_costs()
        record = Record(
            machine_facts(space.root.parent, costs),
            asdict(amounts),
            {name: SUBJECTS[name].facts for name in subjects},
            {name: one.facts for name, one in scenarios.items()},
        )
        try:
            for name in Harness(record, amounts, costs, space, note).run(scenarios, list(record.subjects)):
                then(record, name)
        finally:
            record.save(path)
    return record
