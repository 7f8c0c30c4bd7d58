"""One spec through the funnel: searched, or served by the finalists of another spec."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from flashgen.config import KernelConfig
from flashgen.families import serving
from flashgen.outcome import Toolchain
from flashgen.spec import AttentionSpec, Workload
from flashgen.tune.choose import Choice
from flashgen.tune.entry import entry_of
from flashgen.tune.evaluate import Evaluated
from flashgen.tune.failures import explain, unsupported
from flashgen.tune.identity import Identity, open_study
from flashgen.tune.predicted import promising
from flashgen.tune.progress import Progress
from flashgen.tune.records import TrialRecord
from flashgen.tune.request import TuneRequest
from flashgen.tune.result import TuneResult, count, rejections
from flashgen.tune.search import Limits, search
from flashgen.tune.settle import settle
from flashgen.tune.space import Space, space_of
from flashgen.tune.stages import Stages

_SHOWN_TIES = 5
_PROMISING = 8  # configs of the cost model's choice that are tried before the sampler's


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """What the specs of one run share. `deadline` is when this spec's search must end, in time.monotonic seconds."""

    request: TuneRequest
    stages: Stages
    workloads: tuple[Workload, ...]
    toolchain: Toolchain
    progress: Progress
    deadline: float = math.inf


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """A spec's result, and its finalists' configs, best first, for the specs that take them over."""

    result: TuneResult
    ranked: tuple[KernelConfig, ...] = ()


def search_spec(spec: AttentionSpec, setting: Setting) -> Outcome:
    """Searches the space of every family of its op for the best config of `spec`.

    Raises:
        FlashgenError: a candidate took the GPU context with it.
        OutputError: the storage cannot be written.
    """
    target = setting.request.target
    if (refusal := unsupported(spec, target, setting.request.families)) is not None:
        return Outcome(result=TuneResult(spec=spec, entry=None, counts=count([], [], None), failure=refusal))
    families = serving(spec.op, setting.request.families)
    spaces = {name: space_of(family, spec, target) for name, family in families.items()}
    records: list[TrialRecord] = []
    notes: tuple[str, ...] = ()
    interrupted = False
    for family, space in spaces.items():
        if not interrupted:
            found, said, interrupted = _search(family, space, spec, setting)
            records, notes = records + found, notes + said
    return _settled(spec, list(spaces.values()), records, notes, interrupted, setting)


def _search(
    family: str, space: Space, spec: AttentionSpec, setting: Setting
) -> tuple[list[TrialRecord], tuple[str, ...], bool]:
    """(every record of the family's study, notes, whether it was interrupted)."""
    request = setting.request
    setting.progress.started(spec, space.enumerated, len(space.configs), min(request.budget, len(space.configs)))
    identity = Identity(
        label=request.study,
        spec=spec,
        family=family,
        gpu=request.target.slug,
        kind=setting.stages.kind,
        workloads=setting.workloads,
        toolchain=setting.toolchain,
    )
    study, notes = open_study(identity, space, request.storage, request.seed)
    study.enqueue(request.families[family].likely_good(spec, request.target))
    study.enqueue(promising(space.configs, spec, request.target, setting.workloads, _PROMISING))
    limits = Limits(trials=request.budget, deadline=setting.deadline, batch=max(2, 2 * request.jobs))
    interrupted = search(study, setting.stages, request.target, limits, setting.progress)
    return study.records(), notes, interrupted


def _settled(
    spec: AttentionSpec,
    spaces: Sequence[Space],
    records: list[TrialRecord],
    notes: tuple[str, ...],
    interrupted: bool,
    setting: Setting,
) -> Outcome:
    stages, target = setting.stages, setting.request.target
    setting.progress.step(spec, "timing the finalists" if stages.kind == "measured" else "proving the best prediction")
    settled = settle((r.outcome for r in records if isinstance(r.outcome, Evaluated)), stages)
    fell = dict(settled.fell)
    records = [replace(record, outcome=fell.get(record.config, record.outcome)) for record in records]
    proven = None if stages.kind == "measured" else int(settled.proof is not None)
    counts = count(spaces, records, proven)
    result = TuneResult(
        spec=spec,
        entry=None,
        counts=counts,
        rejected=rejections(spaces, records),
        trials=tuple(records),
        notes=notes,
        interrupted=interrupted,
    )
    if settled.choice is None or settled.proof is None:
        return Outcome(result=replace(result, failure=explain(spec, target, spaces, records, counts)))
    entry = entry_of(settled.choice, settled.proof, counts.timed, setting.workloads, stages, setting.toolchain)
    result = replace(result, entry=entry, notes=notes + _tie_notes(settled.choice) + stages.notes())
    return Outcome(result=result, ranked=tuple(compiled.config for compiled in settled.ranked))


def _tie_notes(choice: Choice) -> tuple[str, ...]:
    """Which configs another run might have chosen, but for the rule that decides among equals."""
    if not choice.tied:
        return ()
    keys = ", ".join(sorted(one.compiled.config.key for one in choice.tied)[:_SHOWN_TIES])
    more = len(choice.tied) - _SHOWN_TIES
    return (f"{len(choice.tied)} not told apart from the best: {keys}" + (f" and {more} more" if more > 0 else ""),)
