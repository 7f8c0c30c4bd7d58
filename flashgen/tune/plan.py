"""The order of a run: which specs are searched, which take the finalists of another, which dtypes share a rule."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from flashgen.families import Family
from flashgen.hardware.target import GpuTarget
from flashgen.spec import DTYPES, AttentionSpec, Dtype
from flashgen.tune.failures import unsupported

_TWIN: dict[Dtype, Dtype] = {"bf16": "fp16", "fp16": "bf16"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One spec to find a rule for. `also` is another dtype that the rule is to serve; `notes` go with its result."""

    spec: AttentionSpec
    also: Dtype | None = None
    notes: tuple[str, ...] = ()

    @property
    def base(self) -> AttentionSpec | None:
        """The spec whose finalists may serve: a window's work a tile is causal attention's. None: search."""
        return replace(self.spec, causal=True, window=False, softcap=False) if self.spec.window else None


def plan(specs: Iterable[AttentionSpec], target: GpuTarget, families: Mapping[str, Family]) -> list[Job]:
    """A job for every spec, but one for both 16-bit dtypes where both are asked for; searches come first."""
    wanted = dict.fromkeys(specs)
    jobs = []
    for spec in sorted(wanted, key=lambda spec: (spec.window, DTYPES.index(spec.dtype))):
        twin = twin_of(spec)
        refusal = unsupported(spec, target, families)
        twin_refusal = None if twin is None else unsupported(twin, target, families)
        if twin is None or twin not in wanted or (refusal and twin_refusal):
            jobs.append(Job(spec=spec))
        elif refusal:
            jobs.append(Job(spec=twin, notes=(f"{spec.dtype} is not served: {refusal}",)))
        elif not twin_refusal and DTYPES.index(spec.dtype) < DTYPES.index(twin.dtype):
            jobs.append(Job(spec=spec, also=twin.dtype))
    return jobs


def twin_of(spec: AttentionSpec) -> AttentionSpec | None:
    """The same attention in the other 16-bit dtype; None for fp32."""
    other = _TWIN.get(spec.dtype)
    return None if other is None else replace(spec, dtype=other)
