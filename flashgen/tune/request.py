"""What a user asks of a run."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

from flashgen.errors import SpecError
from flashgen.families import FAMILIES, Family
from flashgen.hardware.target import GpuTarget
from flashgen.spec import MASKS, AttentionSpec, Dtype, Op, Workload
from flashgen.store.entry import TunedEntry
from flashgen.store.lookup import serves
from flashgen.tune.workloads import TRIALS, Preset, default_workloads
from flashgen.variants import PLAIN, SOFTCAP, variants_of

USUAL_HEAD_DIMS = (64, 128, 256)
VARIANTS = variants_of(MASKS, (PLAIN, SOFTCAP))


@dataclass(frozen=True, kw_only=True, slots=True)
class TuneRequest:
    """A run: `specs` on `target`. With `present` the kernels are measured on device `index`, else predicted.

    `workloads` are used for every spec; without any, the preset's own are. `trials` is a spec's budget (None: the
    preset's), `timeout_s` the whole run's. `storage` keeps the studies, in a file or at a URL, under names that begin
    with `study`; without it they are in memory. With `force` nothing is taken from earlier runs: stored trials of the
    same studies are deleted, and candidates known to crash or hang are tried again.
    Families whose kernels only a GPU can show exact are left out where it is not present.
    A spec that takes over another's finalists takes the configs of `held` rules where the run has no such finalists.

    Raises:
        SpecError: nothing to tune, or a budget below one.
    """

    target: GpuTarget
    present: bool
    index: int = 0
    specs: tuple[AttentionSpec, ...]
    workloads: tuple[Workload, ...] = ()
    preset: Preset = "quick"
    trials: int | None = None
    timeout_s: float | None = None
    storage: str | Path | None = None
    study: str = ""
    force: bool = False
    seed: int = 0
    held: tuple[TunedEntry, ...] = ()
    families: Mapping[str, Family] = field(default_factory=lambda: FAMILIES)
    jobs: int = field(default_factory=lambda: os.cpu_count() or 1)

    def __post_init__(self) -> None:
        if not self.specs:
            raise SpecError("nothing to tune: no op, head_dim, dtype or mask is asked for")
        for name in ("trials", "timeout_s", "jobs"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise SpecError(f"{name} {value} is not above zero")
        if not self.present:
            proven_here = {name: family for name, family in self.families.items() if family.interpreted}
            object.__setattr__(self, "families", proven_here)

    @property
    def budget(self) -> int:
        return TRIALS[self.preset] if self.trials is None else self.trials

    def workloads_of(self, spec: AttentionSpec) -> tuple[Workload, ...]:
        return self.workloads or default_workloads(spec, self.preset)


def specs_of(
    head_dims: Iterable[int] = USUAL_HEAD_DIMS,
    dtypes: Iterable[Dtype] = ("bf16", "fp16"),
    variants: Iterable[str] = VARIANTS,
    ops: Iterable[Op] = ("forward",),
) -> tuple[AttentionSpec, ...]:
    """One spec for each combination; a variant is a mask and its features, such as `window_softcap`.

    Raises:
        SpecError: a head_dim, a dtype or a variant that flashgen does not write.
    """
    return tuple(
        AttentionSpec.of_variant(variant, dtype=dtype, head_dim=head_dim, op=op)
        for op, head_dim, dtype, variant in product(ops, head_dims, dtypes, variants)
    )


def lending(rules: Iterable[TunedEntry], *, present: bool) -> tuple[TunedEntry, ...]:
    """Those of a GPU's rules that need not be found again: where the GPU is present, the measured ones."""
    return tuple(rule for rule in rules if rule.evidence.kind == "measured" or not present)


def unserved(specs: Iterable[AttentionSpec], rules: Iterable[TunedEntry]) -> tuple[AttentionSpec, ...]:
    """The specs for which there is no rule of their own."""
    rules = tuple(rules)
    return tuple(spec for spec in specs if not any(serves(rule, spec) for rule in rules))
