"""A spec that is not searched: the finalists of a spec with the same work a tile are tried on it, best first."""

from __future__ import annotations

from collections.abc import Sequence

from flashgen.config import KernelConfig
from flashgen.outcome import Reason, Rejected
from flashgen.resources.sram import exceeds
from flashgen.spec import AttentionSpec
from flashgen.store.entry import TunedEntry
from flashgen.tune.entry import entry_of
from flashgen.tune.evaluate import Evaluated, Fallen, evaluate, stop_if_fatal
from flashgen.tune.records import TrialRecord
from flashgen.tune.request import TuneRequest
from flashgen.tune.result import TuneResult, count, rejections
from flashgen.tune.settle import settle
from flashgen.tune.space import Space
from flashgen.tune.stages import Candidate
from flashgen.tune.tune_spec import Setting

_MAX_TRIED = 8


def derive_spec(
    spec: AttentionSpec, base: AttentionSpec, ranked: Sequence[KernelConfig], setting: Setting
) -> TuneResult:
    """The rule for `spec` with the first of `ranked` that compiles, is exact and gives times; they are `base`'s
    finalists, best first. The entry is None where none of the first few does."""
    setting.progress.step(spec, f"trying the finalists of {base.key}")
    space = _space(spec, ranked[:_MAX_TRIED], setting.request)
    records: list[TrialRecord] = []
    entry = None
    for config in space.configs:
        if entry is not None:
            break
        outcome, entry = _try(Candidate(spec, config), setting)
        records.append(TrialRecord(number=len(records), config=config, outcome=outcome))
        setting.progress.tried(spec, records[-1])
    proven = None if setting.stages.kind == "measured" else int(entry is not None)
    return TuneResult(
        spec=spec,
        entry=entry,
        counts=count([space], records, proven),
        rejected=rejections([space], records),
        trials=tuple(records),
        derived_from=base,
    )


def _space(spec: AttentionSpec, configs: Sequence[KernelConfig], request: TuneRequest) -> Space:
    """The configs that the derived spec may have too; masks and scores change what excludes a config."""
    target = request.target
    fit: list[KernelConfig] = []
    rejected: list[tuple[KernelConfig, Rejected]] = []
    for config in configs:
        excluded = request.families[config.family].excluded(spec, config, target)
        why = Rejected(reason=Reason.CONSTRAINT, detail=excluded) if excluded else exceeds(spec, config, target)
        if why is None:
            fit.append(config)
        else:
            rejected.append((config, why))
    return Space(configs=tuple(fit), rejected=tuple(rejected))


def _try(candidate: Candidate, setting: Setting) -> tuple[Evaluated | Fallen, TunedEntry | None]:
    """What came of one candidate, and its rule if it may have one."""
    stages, target = setting.stages, setting.request.target
    ((_, answer),) = stages.compile([candidate])
    outcome = evaluate(candidate, answer, target, stages)
    if isinstance(outcome, Fallen):
        stop_if_fatal(candidate, outcome, stages)
        return outcome, None
    settled = settle([outcome], stages)
    if settled.choice is None or settled.proof is None:
        return settled.fell[0][1], None
    return outcome, entry_of(settled.choice, settled.proof, 1, setting.workloads, stages, setting.toolchain)
