"""The order of a run: which specs are searched, which take the finalists of another, which dtypes share a rule."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from flashgen.families import Family
from flashgen.hardware.target import GpuTarget
from flashgen.spec import DTYPES, OPS, AttentionSpec, Dtype
from flashgen.tune.failures import unsupported
from flashgen.variants import with_variant

_TWIN: dict[Dtype, Dtype] = {"bf16": "fp16", "fp16": "bf16"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One spec to find a rule for. `also` is another dtype that the rule is to serve; `notes` go with its result."""

    spec: AttentionSpec
    also: Dtype | None = None
    notes: tuple[str, ...] = ()

    @property
    def base(self) -> AttentionSpec | None:
        """The spec whose finalists may serve: that without the features, which change a tile's scores and not its
        matmuls; a window's work a tile is causal attention's. None: search."""
        plain = with_variant(self.spec, "causal" if self.spec.window else self.spec.mask)
        return None if plain == self.spec else plain


def plan(specs: Iterable[AttentionSpec], target: GpuTarget, families: Mapping[str, Family]) -> list[Job]:
    """A job for every spec, but one for both 16-bit dtypes where both are asked for: op by op, searches first."""
    wanted = dict.fromkeys(specs)
    jobs = []
    for spec in sorted(wanted, key=_order):
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


def _order(spec: AttentionSpec) -> tuple[int, bool, int]:
    return OPS.index(spec.op), Job(spec=spec).base is not None, DTYPES.index(spec.dtype)


def twin_of(spec: AttentionSpec) -> AttentionSpec | None:
    """The same attention in the other 16-bit dtype; None for fp32."""
    other = _TWIN.get(spec.dtype)
    return None if other is None else replace(spec, dtype=other)
