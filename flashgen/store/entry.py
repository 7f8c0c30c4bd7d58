"""What tuned_configs/ holds: a TunedFile of rules, each a TunedEntry with its evidence."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

from flashgen.config import KernelConfig
from flashgen.errors import TunedConfigError
from flashgen.families import FAMILIES
from flashgen.outcome import Proof, Resources, Toolchain
from flashgen.spec import DTYPES, FEATURES, OPS, AttentionSpec, Op, Workload
from flashgen.store.evidence import Evidence, EvidenceKind, Timing

__all__ = [
    "SCHEMA",
    "Evidence",
    "EvidenceKind",
    "Timing",
    "TunedEntry",
    "TunedFile",
    "WorkloadRange",
    "check_place",
    "first_clash",
]

SCHEMA = 1

_SLUG = re.compile(r"[a-z0-9][a-z0-9_-]*")
_SHARING = frozenset(("fp16", "bf16"))  # dtypes whose kernels differ in nothing that a config depends on


def check_place(gpu: str, op: str) -> None:
    """Raises TunedConfigError unless a file of this GPU slug and op can have a path of its own."""
    if not _SLUG.fullmatch(gpu):
        raise TunedConfigError(
            f"gpu {gpu!r} is not a slug such as nvidia-h200: lower-case letters, digits, '-' and '_'"
        )
    if op not in OPS:
        raise TunedConfigError(f"op {op!r} is not one of {', '.join(OPS)}")


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class WorkloadRange:
    """The workloads that a rule covers, by keys a query can see. Both bounds are inclusive; no maximum is None.

    Raises:
        TunedConfigError: the range is empty or starts below 1.
    """

    seqlen_k_min: int = 1
    seqlen_k_max: int | None = None

    def __post_init__(self) -> None:
        low, high = self.seqlen_k_min, self.seqlen_k_max
        if low < 1 or (high is not None and high < low):
            raise TunedConfigError(f"seqlen_k from {low} to {high} is no range: 1 <= seqlen_k_min <= seqlen_k_max")

    def __str__(self) -> str:
        return f"seqlen_k {self.seqlen_k_min}..{self.seqlen_k_max or ''}"

    @property
    def end(self) -> float:
        """The largest seqlen_k covered, infinite if there is no maximum."""
        return math.inf if self.seqlen_k_max is None else self.seqlen_k_max

    def covers(self, workload: Workload) -> bool:
        return self.seqlen_k_min <= workload.seqlen_k <= self.end

    def overlaps(self, other: WorkloadRange) -> bool:
        return self.seqlen_k_min <= other.end and other.seqlen_k_min <= self.end

    def without(self, other: WorkloadRange) -> tuple[WorkloadRange, ...]:
        """What is left of this range where `other` rules instead: none, one or two ranges."""
        if not self.overlaps(other):
            return (self,)
        left = []
        if self.seqlen_k_min < other.seqlen_k_min:
            left.append(WorkloadRange(seqlen_k_min=self.seqlen_k_min, seqlen_k_max=other.seqlen_k_min - 1))
        if other.seqlen_k_max is not None and other.seqlen_k_max < self.end:
            left.append(WorkloadRange(seqlen_k_min=other.seqlen_k_max + 1, seqlen_k_max=self.seqlen_k_max))
        return tuple(left)


@dataclass(frozen=True, kw_only=True, slots=True)
class TunedEntry:
    """One rule: for `spec` over `workloads`, use `config`.

    `spec.dtype` is the dtype that was timed and `dtypes` those that the rule serves: fp16 and bf16 may share one.
    After a merge `workloads` may be narrower than what the evidence was taken over.

    Raises:
        TunedConfigError: dtypes that cannot share a rule, or a proof that does not hold for it.
    """

    spec: AttentionSpec
    dtypes: tuple[str, ...]
    workloads: WorkloadRange = WorkloadRange()
    config: KernelConfig
    evidence: Evidence
    resources: Resources
    proof: Proof
    toolchain: Toolchain

    def __post_init__(self) -> None:
        given, own = self.dtypes, self.spec.dtype
        object.__setattr__(self, "dtypes", tuple(dtype for dtype in DTYPES if dtype in given))
        if len(self.dtypes) != len(given) or own not in given or not (_SHARING.issuperset(given) or given == (own,)):
            raise TunedConfigError(f"dtypes {list(given)}: a rule timed in {own} serves {own}; fp16 and bf16 may share")
        if (op := FAMILIES[self.config.family].op) != self.spec.op:
            raise TunedConfigError(f"family {self.config.family} writes op {op}, and the rule is of {self.spec.op}")
        if self.proof.where not in ("gpu", "interpreter"):
            raise TunedConfigError(f"proof.where {self.proof.where!r} is neither gpu nor interpreter")
        if not self.proof.worst_ratio <= 1:
            raise TunedConfigError(f"proof.worst_ratio {self.proof.worst_ratio} is above 1: the kernel is not exact")
        if self.evidence.kind == "measured" and own not in self.proof.dtypes:
            raise TunedConfigError(f"measured in {own}, proven only in {', '.join(self.proof.dtypes) or 'no dtype'}")

    @property
    def unordered(self) -> bool:
        """Whether two runs may differ in bits; beside such a rule, another is for who asks for determinism."""
        return FAMILIES[self.config.family].unordered

    @property
    def label(self) -> str:
        """Such as `forward-bf16-d128-causal seqlen_k 1..4096`; unique within a file."""
        return f"{self.spec.key} {self.workloads}" + (" unordered" if self.unordered else "")

    @property
    def sort_key(self) -> tuple[int, int, tuple[bool, ...], str, bool, int]:
        """Heads first, then mask and features, then dtype, so that rules which are compared stand together."""
        spec = self.spec
        variant = (spec.causal, spec.window, *(feature in spec.features for feature in FEATURES))
        return (spec.head_dim, spec.head_dim_v, variant, spec.dtype, not self.unordered, self.workloads.seqlen_k_min)


def first_clash(entries: Iterable[TunedEntry]) -> tuple[TunedEntry, TunedEntry] | None:
    """The first two rules of one spec (own dtype included) that both cover some seqlen_k, or None. An unordered rule
    clashes with unordered ones only."""
    seen: dict[tuple[AttentionSpec, bool], list[TunedEntry]] = {}
    for entry in entries:
        alike = seen.setdefault((entry.spec, entry.unordered), [])
        for other in alike:
            if other.workloads.overlaps(entry.workloads):
                return other, entry
        alike.append(entry)
    return None


@dataclass(frozen=True, kw_only=True, slots=True)
class TunedFile:
    """tuned_configs/<gpu>/<op>.yaml: the rules of one op on one GPU, sorted, and the command that makes them again.

    Raises:
        TunedConfigError: another schema, a bad slug or op, a rule of another op, or two rules for one case.
    """

    schema: int = SCHEMA
    gpu: str
    op: Op
    command: str
    entries: tuple[TunedEntry, ...]

    def __post_init__(self) -> None:
        if self.schema != SCHEMA:
            raise TunedConfigError(f"schema {self.schema} is not {SCHEMA}, the one that this flashgen reads and writes")
        check_place(self.gpu, self.op)
        object.__setattr__(self, "entries", tuple(sorted(self.entries, key=lambda entry: entry.sort_key)))
        for entry in self.entries:
            if entry.spec.op != self.op:
                raise TunedConfigError(f"a rule of op {entry.spec.op!r} in a file of op {self.op!r}")
        if clash := first_clash(self.entries):
            raise TunedConfigError(f"two rules for one case: {clash[0].label} and {clash[1].label}")
