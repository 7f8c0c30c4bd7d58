"""What a run hands back: for each spec its rules, the funnel's counts, and why the others fell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
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

    `tried` of those that `fit` were compiled. When measured, each stage is a part of the one before:
    enumerated >= fit >= tried >= compiled >= exact >= timed. When predicted, `timed` counts predictions, and `exact`
    the few that were proven because they would win.
    """

    enumerated: int
    fit: int
    tried: int
    compiled: int
    exact: int
    timed: int


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


def count(spaces: Sequence[Space], records: Sequence[TrialRecord], proven: int | None) -> FunnelCounts:
    """The counts over `spaces`; `proven` is how many were shown exact if that came last, else None."""
    fell = Counter(None if isinstance(record.outcome, Evaluated) else record.outcome.gate for record in records)
    compiled = len(records) - fell[Gate.COMPILE]
    return FunnelCounts(
        enumerated=sum(space.enumerated for space in spaces),
        fit=sum(len(space.configs) for space in spaces),
        tried=len(records),
        compiled=compiled,
        exact=compiled - fell[Gate.PROVE] if proven is None else proven,
        timed=fell[None] if proven is None else fell[None] + fell[Gate.PROVE],
    )
