"""What a run hands back: for each spec its rules, the funnel's counts, and why the others fell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from flashgen.config import KernelConfig
from flashgen.outcome import Reason, Rejected
from flashgen.spec import AttentionSpec
from flashgen.store.entry import TunedEntry
from flashgen.tune.evaluate import Evaluated, Fallen, Gate
from flashgen.tune.records import TrialRecord
from flashgen.tune.space import Space


@dataclass(frozen=True, kw_only=True, slots=True)
class FunnelCounts:
    """How many configs reached each stage; those that did not are among the rejected.

    `tried` of those that `fit` were compiled. Each stage is a part of the one before: enumerated >= fit >= tried >=
    compiled >= timed >= exact. When predicted, `timed` counts predictions. `exact` are those that were proven because
    they might win: when predicted, because they would.
    """

    enumerated: int
    fit: int
    tried: int
    compiled: int
    timed: int
    exact: int


@dataclass(frozen=True, kw_only=True, slots=True)
class TuneResult:
    """`entries` are the rules for `spec` by length; none where nothing works, and `failure` says why in several lines.

    `derived_from` is the spec whose finalists were tried here in place of a search.
    """

    spec: AttentionSpec
    counts: FunnelCounts
    entries: tuple[TunedEntry, ...] = ()
    rejected: tuple[tuple[KernelConfig, Rejected], ...] = ()
    trials: tuple[TrialRecord, ...] = ()
    notes: tuple[str, ...] = ()
    interrupted: bool = False
    failure: str | None = None
    derived_from: AttentionSpec | None = None

    @property
    def reasons(self) -> dict[Reason, int]:
        """How many fell for each reason, in the order of the funnel."""
        count = Counter(rejected.reason for _, rejected in self.rejected)
        return {reason: count[reason] for reason in Reason if count[reason]}


def rejections(spaces: Iterable[Space], records: Iterable[TrialRecord]) -> tuple[tuple[KernelConfig, Rejected], ...]:
    """Every config that fell, by the bound or in a trial, and why."""
    by_bound = [pair for space in spaces for pair in space.rejected]
    tried = [(record.config, record.outcome.rejected) for record in records if isinstance(record.outcome, Fallen)]
    return (*by_bound, *tried)


def count(
    spaces: Sequence[Space], records: Sequence[TrialRecord], proven: Collection[KernelConfig] = ()
) -> FunnelCounts:
    """The counts over `spaces`; `proven` are the configs that were shown to be exact in the end."""
    fell = Counter(None if isinstance(record.outcome, Evaluated) else record.outcome.gate for record in records)
    standing = [(record.config, record.outcome) for record in records if isinstance(record.outcome, Evaluated)]
    compiled = len(records) - fell[Gate.COMPILE]
    return FunnelCounts(
        enumerated=sum(space.enumerated for space in spaces),
        fit=sum(len(space.configs) for space in spaces),
        tried=len(records),
        compiled=compiled,
        timed=compiled - fell[Gate.TIME],
        exact=sum(outcome.proven or config in proven for config, outcome in standing),
    )
