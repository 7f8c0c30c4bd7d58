"""A whole run: every spec that was asked for, in the order that lets one serve another."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from flashgen.compiler.known_bad import forget_bad
from flashgen.compiler.toolchain import toolchain
from flashgen.config import KernelConfig
from flashgen.errors import NoFeasibleConfig
from flashgen.outcome import Rejected, Toolchain
from flashgen.spec import AttentionSpec, Workload
from flashgen.tune.derived import derive_spec
from flashgen.tune.entry import serve_also
from flashgen.tune.fleet import Fleet
from flashgen.tune.measured import MeasuredStages
from flashgen.tune.plan import Job, plan, twin_of
from flashgen.tune.predicted import PredictedStages
from flashgen.tune.progress import Progress, Silent
from flashgen.tune.request import TuneRequest
from flashgen.tune.result import TuneResult, count
from flashgen.tune.stages import Stages
from flashgen.tune.storage import open_storage
from flashgen.tune.tune_spec import Lent, Outcome, Setting, search_spec

_KNOWN = 4  # configs that are tried before the family's own guesses

MakeStages = Callable[[TuneRequest, tuple[Workload, ...]], Stages]


def stages_of(request: TuneRequest, workloads: tuple[Workload, ...]) -> Stages:
    """The GPU where it is present, else compiler, cost model and interpreter."""
    if request.present:
        return MeasuredStages(request.target, request.index, workloads, jobs=request.jobs, seed=request.seed)
    return PredictedStages(request.target, workloads, jobs=request.jobs, seed=request.seed)


def tune(
    request: TuneRequest, progress: Progress | None = None, make_stages: MakeStages = stages_of
) -> tuple[TuneResult, ...]:
    """A result for every spec, but one for both 16-bit dtypes where the rules serve both. Each is also handed to
    `progress` as it is done. An interrupt from the keyboard ends the run early: the last result is then `interrupted`.

    Raises:
        NoFeasibleConfig: not one spec has a rule; the text says of each why.
        FlashgenError: the GPU's process does not start; results handed to `progress` before stay good.
        OutputError: the storage cannot be opened or written; results handed to `progress` before stay good.
    """
    if request.force:
        forget_bad()
    with open_storage(request.storage) as storage, Fleet(storage, request.study).joined("tune") as fleet:
        results = _Run(request, progress or Silent(), make_stages, fleet).results()
    interrupted = any(result.interrupted for result in results)
    if not interrupted and not any(result.entries for result in results):
        raise NoFeasibleConfig("\n".join(result.failure or result.spec.key for result in results))
    return tuple(results)


@dataclass
class _Run:
    request: TuneRequest
    progress: Progress
    make_stages: MakeStages
    fleet: Fleet
    jobs: list[Job] = field(default_factory=list)
    lent: dict[AttentionSpec, Lent] = field(default_factory=dict)
    made: dict[tuple[Workload, ...], Stages] = field(default_factory=dict)
    toolchain: Toolchain = field(default_factory=toolchain)

    def results(self) -> list[TuneResult]:
        self.jobs = plan(self.request.specs, self.request.target, self.request.families)
        self.jobs[0] = replace(self.jobs[0], notes=self.fleet.storage.notes + self.jobs[0].notes)
        end = None if self.request.timeout_s is None else time.monotonic() + self.request.timeout_s
        done: list[TuneResult] = []
        while self.jobs and not (done and done[-1].interrupted):
            job = self.jobs.pop(0)
            try:
                result = self._do(job, self._setting(job, end))
            except KeyboardInterrupt:
                result = _nothing(job.spec)
            done.append(result)
            self.progress.ended(result)
        return done

    def _do(self, job: Job, setting: Setting) -> TuneResult:
        outcome = self._derived(job, setting) or search_spec(job.spec, setting)
        self.lent[job.spec] = outcome.lent
        result = replace(outcome.result, notes=job.notes + outcome.result.notes)
        return self._shared(job, result, setting)

    def _derived(self, job: Job, setting: Setting) -> Outcome | None:
        """The rules with the configs of the job's base, or None if it has none that works here."""
        for known, note in ((self.lent.get, ""), (self._held, "which was tuned before")):
            for base in _bases(job):
                if (lent := known(base)) is not None and lent.winners:
                    result = derive_spec(job.spec, base, lent, setting)
                    notes = (f"with the config of {base.key}, {note}", *result.notes) if note else result.notes
                    return Outcome(result=replace(result, notes=notes)) if result.entries else None
        return None

    def _held(self, base: AttentionSpec) -> Lent:
        """The configs of rules for `base` that were there before the run, the rule for the longest sequences first."""
        rules = [entry for entry in self.request.held if entry.spec == base]
        ordered = sorted(rules, key=lambda entry: -entry.workloads.end)
        return Lent(winners=tuple(dict.fromkeys(entry.config for entry in ordered)))

    def _known(self, spec: AttentionSpec) -> tuple[KernelConfig, ...]:
        """Configs to try first: those of the rules that the spec had, then what won for the nearest specs of this run.

        Only where times are measured: what was predicted before says nothing that the cost model would not say again.
        """
        if not self.request.present:
            return ()
        before = [entry.config for entry in self.request.held if entry.spec in (spec, twin_of(spec))]
        near = sorted((each for each in self.lent if each.op == spec.op), key=lambda each: _distance(each, spec))
        won = [config for each in near for config in self.lent[each].winners]
        return tuple(dict.fromkeys((*before, *won)))[:_KNOWN]

    def _shared(self, job: Job, result: TuneResult, setting: Setting) -> TuneResult:
        """The result, its rules serving the job's other dtype too, or a job for that dtype in the queue."""
        if job.also is None or result.interrupted:
            return result
        apart = Job(spec=replace(job.spec, dtype=job.also))
        if not result.entries:
            self.jobs.insert(0, apart)
            return result
        self.progress.step(job.spec, f"sharing the rule with {job.also}")
        try:
            entries = serve_also(result.entries, job.also, setting.stages, self.request.target)
        except KeyboardInterrupt:  # the rules are good for their own dtype
            return replace(result, interrupted=True)
        if isinstance(entries, Rejected):
            self.jobs.insert(0, apart)
            why = f"{job.also} is tuned apart: {entries.reason}: {entries.detail}"
            return replace(result, notes=(*result.notes, why))
        return replace(result, entries=entries)

    def _setting(self, job: Job, end: float | None) -> Setting:
        workloads = self.request.workloads_of(job.spec)
        if workloads not in self.made:
            self.made[workloads] = self.make_stages(self.request, workloads)
        setting = Setting(
            request=self.request,
            stages=self.made[workloads],
            workloads=workloads,
            toolchain=self.toolchain,
            progress=self.progress,
            fleet=self.fleet,
            known=self._known(job.spec),
        )
        if end is None:
            return setting
        searches = 1 + sum(other.base is None for other in self.jobs)  # what time is left, they share
        return replace(setting, deadline=time.monotonic() + max(0.0, end - time.monotonic()) / searches)


def _distance(a: AttentionSpec, b: AttentionSpec) -> tuple[int, bool, bool]:
    """Heads decide what fits, then the mask what is fast."""
    return abs(a.head_dim - b.head_dim) + abs(a.head_dim_v - b.head_dim_v), a.mask != b.mask, a != b


def _bases(job: Job) -> Sequence[AttentionSpec]:
    """The specs whose finalists the job may take over: its base, and that in the dtype which shares its rules."""
    if job.base is None:
        return ()
    twin = twin_of(job.base)
    return (job.base,) if twin is None else (job.base, twin)


def _nothing(spec: AttentionSpec) -> TuneResult:
    """The result of a spec that was interrupted before anything was chosen."""
    return TuneResult(spec=spec, counts=count([], []), interrupted=True, failure=f"{spec.key}: interrupted")
