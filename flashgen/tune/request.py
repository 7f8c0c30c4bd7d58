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
from flashgen.spec import AttentionSpec, Dtype, Workload
from flashgen.tune.workloads import TRIALS, Preset, default_workloads

USUAL_HEAD_DIMS = (64, 128, 256)
VARIANTS = ("full", "causal", "window", "window_softcap")


@dataclass(frozen=True, kw_only=True, slots=True)
class TuneRequest:
    """A run: `specs` on `target`. With `present` the kernels are measured on device `index`, else predicted.

    `workloads` are used for every spec; without any, the preset's own are. `trials` is a spec's budget (None: the
    preset's), `timeout_s` the whole run's. `storage` keeps the studies in a file, under names that begin with `study`.

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
    storage: Path | None = None
    study: str = ""
    seed: int = 0
    families: Mapping[str, Family] = field(default_factory=lambda: FAMILIES)
    jobs: int = field(default_factory=lambda: os.cpu_count() or 1)

    def __post_init__(self) -> None:
        if not self.specs:
            raise SpecError("nothing to tune: no head_dim, dtype or mask is asked for")
        for name in ("trials", "timeout_s", "jobs"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise SpecError(f"{name} {value} is not above zero")

    @property
    def budget(self) -> int:
        return TRIALS[self.preset] if self.trials is None else self.trials

    def workloads_of(self, spec: AttentionSpec) -> tuple[Workload, ...]:
        return self.workloads or default_workloads(spec, self.preset)


def specs_of(
    head_dims: Iterable[int] = USUAL_HEAD_DIMS,
    dtypes: Iterable[Dtype] = ("bf16", "fp16"),
    variants: Iterable[str] = VARIANTS,
) -> tuple[AttentionSpec, ...]:
    """One spec for each combination; variants are `full`, `causal` and `window`, each also with `_softcap`.

    Raises:
        SpecError: a head_dim, a dtype or a variant that flashgen does not write.
    """
    specs = []
    for head_dim, dtype, variant in product(head_dims, dtypes, variants):
        mask, _, score = variant.partition("_")
        if mask not in ("full", "causal", "window") or score not in ("", "softcap"):
            raise SpecError(f"variant {variant!r} is not one of {', '.join(VARIANTS)}")
        specs.append(
            AttentionSpec(
                dtype=dtype,
                head_dim=head_dim,
                head_dim_v=head_dim,
                causal=mask == "causal",
                window=mask == "window",
                softcap=score == "softcap",
            )
        )
    return tuple(specs)
