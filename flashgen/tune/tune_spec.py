"""One spec through the funnel: searched, or served by the finalists of another spec."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from flashgen.config import KernelConfig
from flashgen.families import serving
from flashgen.outcome import Toolchain
from flashgen.spec import AttentionSpec, Workload
from flashgen.store.entry import WorkloadRange
from flashgen.tune.choose import Incumbents
from flashgen.tune.entry import entries_of
from flashgen.tune.evaluate import Evaluated
from flashgen.tune.failures import explain, unsupported
from flashgen.tune.fleet import Fleet
from flashgen.tune.identity import Identity, open_study
from flashgen.tune.plan import twin_of
from flashgen.tune.predicted import promising
from flashgen.tune.progress import Progress
from flashgen.tune.records import TrialRecord
from flashgen.tune.request import TuneRequest
from flashgen.tune.result import TuneResult, count, rejections
from flashgen.tune.rules import Rule
from flashgen.tune.search import Limits
from flashgen.tune.settle import settle
from flashgen.tune.space import Space, space_of
from flashgen.tune.stages import Stages
from flashgen.tune.together import search_together

_SHOWN_TIES = 5
_PROMISING = 8  # configs of the cost model's choice that are tried before the sampler's


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """What the specs of one run share. `known` are configs that were good for this spec before, or for its neighbours,
    and `deadline` is when its search must end, in time.monotonic seconds."""

    request: TuneRequest
    stages: Stages
    workloads: tuple[Workload, ...]
    toolchain: Toolchain
    progress: Progress
    fleet: Fleet
    known: tuple[KernelConfig, ...] = ()
    deadline: float = math.inf


@dataclass(frozen=True, kw_only=True, slots=True)
class Lent:
    """The configs that a spec's rules name, and those that may stand in for one of them, best first."""

    winners: tuple[KernelConfig, ...] = ()
    others: tuple[KernelConfig, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """A spec's result, and what it lends to the specs that take over its configs."""

    result: TuneResult
    lent: Lent = Lent()


def search_spec(spec: AttentionSpec, setting: Setting) -> Outcome:
    """Searches the space of every family of its op for the best configs of `spec`.

    Raises:
        FlashgenError: the GPU's process does not start.
        OutputError: the storage cannot be written.
    """
    target = setting.request.target
    if (refusal := unsupported(spec, target, setting.request.families)) is not None:
        return Outcome(result=TuneResult(spec=spec, counts=count([], []), failure=refusal))
    families = serving(spec.op, setting.request.families)
    spaces = {name: space_of(family, spec, target, setting.workloads) for name, family in families.items()}
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
    study, notes = open_study(identity, space, setting.fleet, request.seed, request.budget, fresh=request.force)
    study.enqueue(config for config in setting.known if config.family == family)
    study.enqueue(request.families[family].likely_good(spec, request.target))
    study.enqueue(promising(space.configs, spec, request.target, setting.workloads, _PROMISING))
    batch, ahead = setting.fleet.batch(request.budget, request.jobs), setting.fleet.ahead(request.jobs)
    limits = Limits(trials=request.budget, deadline=setting.deadline, batch=batch, ahead=ahead)
    interrupted = search_together(study, setting.stages, request.target, limits, setting.progress)
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
    standing = (record.outcome for record in records if isinstance(record.outcome, Evaluated))
    settled = settle(standing, stages, setting.workloads, incumbents(spec, setting.request))
    fell = dict(settled.fell)
    records = [replace(record, outcome=fell.get(record.config, record.outcome)) for record in records]
    counts = count(spaces, records, settled.proven)
    result = TuneResult(
        spec=spec,
        counts=counts,
        rejected=rejections(spaces, records),
        trials=tuple(records),
        notes=notes,
        interrupted=interrupted,
    )
    if not settled.rules:
        return Outcome(result=replace(result, failure=explain(spec, target, spaces, records, counts)))
    entries = entries_of(settled.rules, counts.timed, stages.kind, setting.toolchain)
    ties = tuple(note for rule, _ in settled.rules for note in _tie_notes(rule))
    result = replace(result, entries=entries, notes=notes + ties + stages.notes())
    others = tuple(compiled.config for compiled in settled.others)
    return Outcome(result=result, lent=Lent(winners=settled.winners, others=others))


def incumbents(spec: AttentionSpec, request: TuneRequest) -> Incumbents:
    """Without tuning a user gets the best guess of the first family that writes the op."""
    family = next(iter(serving(spec.op, request.families).values()))
    held = frozenset(entry.config for entry in request.held if entry.spec in (spec, twin_of(spec)))
    return Incumbents(safe=family.likely_good(spec, request.target)[0], held=held)


def _tie_notes(rule: Rule) -> tuple[str, ...]:
    """Which configs another run might have chosen, but for the tie rule."""
    tied = rule.choice.tied
    if not tied:
        return ()
    keys = ", ".join(sorted(one.compiled.config.key for one in tied)[:_SHOWN_TIES])
    where = "" if rule.keys == WorkloadRange() else f" for {rule.keys}"
    more = f" and {len(tied) - _SHOWN_TIES} more" if len(tied) > _SHOWN_TIES else ""
    return (f"{len(tied)} not told apart from the best{where}: {keys}{more}",)
