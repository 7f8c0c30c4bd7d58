"""From entries of tuned_configs to the rows of an emitted table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from flashgen.codegen.module import Row
from flashgen.spec import DTYPES, AttentionSpec, Dtype, Op
from flashgen.store.entry import TunedEntry, WorkloadRange
from flashgen.store.lookup import serves

Heads = tuple[int, int]  # (head_dim, head_dim_v)


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class Case:
    """What an emitted module serves: a dtype and head dims."""

    dtype: Dtype
    heads: Heads

    def spec(self, variant: str, op: Op = "forward") -> AttentionSpec:
        head_dim, head_dim_v = self.heads
        return AttentionSpec.of_variant(variant, dtype=self.dtype, head_dim=head_dim, head_dim_v=head_dim_v, op=op)


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """An entry as it serves one dtype: over `workloads`, a part of the entry's own where another entry is preferred."""

    entry: TunedEntry
    workloads: WorkloadRange


@dataclass(frozen=True, kw_only=True, slots=True)
class RuleSet:
    """All rules of one table for one head dims and variant, by length, and the dtypes that have just these."""

    dtypes: tuple[Dtype, ...]
    spec: AttentionSpec
    rules: tuple[Rule, ...]

    @property
    def serves_any_length(self) -> bool:
        return any(rule.workloads.seqlen_k_max is None for rule in self.rules)

    @property
    def rows(self) -> Iterator[Row]:
        """A row serves every length up to its maximum: also those below its entry's minimum that no other covers."""
        for rule in self.rules:
            entry, limit = rule.entry, rule.workloads.seqlen_k_max
            yield Row(spec=entry.spec, dtypes=self.dtypes, config=entry.config, max_seqlen_k=limit)


def cases_of(entries: Iterable[TunedEntry]) -> set[Case]:
    """Every dtype and head dims that some entry serves."""
    return {
        Case(dtype=dtype, heads=(entry.spec.head_dim, entry.spec.head_dim_v))
        for entry in entries
        for dtype in DTYPES
        if dtype in entry.dtypes
    }


def rule_sets(
    entries: Sequence[TunedEntry], cases: Iterable[Case], variants: Iterable[str], op: Op = "forward"
) -> tuple[RuleSet, ...]:
    """What `entries` hold of `op` for every case and variant, empty sets included.

    16-bit dtypes form one set only where they share all rules: the emitted table is searched from the top.
    """
    cases = sorted(cases, key=lambda case: (case.heads, DTYPES.index(case.dtype)))
    sets: dict[tuple[Heads, str, tuple[Rule, ...]], list[Dtype]] = {}
    for variant in variants:
        for case in cases:
            rules = _rules(entries, case.spec(variant, op))
            sets.setdefault((case.heads, variant, rules), []).append(case.dtype)
    return tuple(
        RuleSet(dtypes=tuple(dtypes), spec=Case(dtype=dtypes[0], heads=heads).spec(variant, op), rules=rules)
        for (heads, variant, rules), dtypes in sets.items()
    )


def _rules(entries: Iterable[TunedEntry], spec: AttentionSpec) -> tuple[Rule, ...]:
    """The rules for exactly `spec`, by length, unordered ones first. An entry timed in its dtype comes before one that
    serves it beside another, which keeps the lengths that are left."""
    serving = [entry for entry in entries if serves(entry, spec)]
    own = [entry for entry in serving if entry.spec == spec]
    rules = [Rule(entry=entry, workloads=entry.workloads) for entry in own]
    for entry in serving:
        if entry.spec != spec:
            rivals = [other for other in own if other.unordered == entry.unordered]
            rules += [Rule(entry=entry, workloads=left) for left in _left_by(entry.workloads, rivals)]
    return tuple(sorted(rules, key=lambda rule: (not rule.entry.unordered, rule.workloads.seqlen_k_min)))


def _left_by(workloads: WorkloadRange, preferred: Iterable[TunedEntry]) -> list[WorkloadRange]:
    pieces = [workloads]
    for entry in preferred:
        pieces = [left for piece in pieces for left in piece.without(entry.workloads)]
    return pieces
