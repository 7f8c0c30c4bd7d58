"""A spec that is not searched: the configs of a spec with the same work a tile are tried on it, best first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice

from flashgen.config import KernelConfig
from flashgen.families import Family
from flashgen.hardware.target import GpuTarget
from flashgen.outcome import Reason, Rejected
from flashgen.resources.sram import exceeds
from flashgen.spec import AttentionSpec
from flashgen.tune.entry import entries_of
from flashgen.tune.evaluate import Evaluated, evaluate
from flashgen.tune.records import TrialRecord
from flashgen.tune.result import TuneResult, count, rejections
from flashgen.tune.settle import Settled, settle
from flashgen.tune.space import Space
from flashgen.tune.stages import Candidate
from flashgen.tune.tune_spec import Lent, Setting, incumbents

_MAX_TRIED = 8  # beside the configs of the base's rules


def derive_spec(spec: AttentionSpec, base: AttentionSpec, lent: Lent, setting: Setting) -> TuneResult:
    """The rules for `spec` with as many of the configs that `base` lends as its rules name, the first that compile, are
    exact and give times: how they share the lengths is fitted anew. There are no entries where none does."""
    setting.progress.step(spec, f"trying the finalists of {base.key}")
    configs = (*lent.winners, *lent.others[:_MAX_TRIED])
    spaces = [_space(spec, family, configs, setting.request.target) for family in setting.request.families.values()]
    records: dict[KernelConfig, TrialRecord] = {}
    fitting = {config for space in spaces for config in space.configs}
    settled, waiting = Settled(), iter([config for config in configs if config in fitting])
    while not settled.rules:
        standing = list(islice(_working(spec, waiting, records, setting), len(lent.winners)))
        if not standing:
            break
        settled = settle(standing, setting.stages, setting.workloads, incumbents(spec, setting.request))
        for config, fallen in settled.fell:
            records[config] = replace(records[config], outcome=fallen)
    found = tuple(records.values())
    counts = count(spaces, found, settled.proven)
    return TuneResult(
        spec=spec,
        entries=entries_of(settled.rules, counts.timed, setting.stages.kind, setting.toolchain),
        counts=counts,
        rejected=rejections(spaces, found),
        trials=found,
        derived_from=base,
    )


def _space(spec: AttentionSpec, family: Family, configs: Iterable[KernelConfig], target: GpuTarget) -> Space:
    """The family's configs that the derived spec may have too; masks and scores change what excludes a config."""
    fit: list[KernelConfig] = []
    rejected: list[tuple[KernelConfig, Rejected]] = []
    for config in (config for config in configs if config.family == family.name):
        excluded = family.unsupported(spec, target) or family.excluded(spec, config, target)
        why = Rejected(reason=Reason.CONSTRAINT, detail=excluded) if excluded else exceeds(spec, config, target)
        if why is None:
            fit.append(config)
        else:
            rejected.append((config, why))
    return Space(configs=tuple(fit), rejected=tuple(rejected))


def _working(
    spec: AttentionSpec, configs: Iterable[KernelConfig], records: dict[KernelConfig, TrialRecord], setting: Setting
) -> Iterator[Evaluated]:
    """Tries configs one by one, adds what came of each to `records`, and gives those that came through."""
    stages, target = setting.stages, setting.request.target
    for config in configs:
        candidate = Candidate(spec, config)
        ((_, answer),) = stages.compile([candidate])
        outcome = evaluate(candidate, answer, target, stages)
        records[config] = TrialRecord(number=len(records), config=config, outcome=outcome)
        setting.progress.tried(spec, records[config])
        if isinstance(outcome, Evaluated):
            yield outcome
