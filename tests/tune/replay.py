"""A back-end that replays a table: the whole tuner without a compiler, a GPU or an interpreter."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from flashgen.families import TlConfig
from flashgen.hardware.lookup import find_gpu
from flashgen.outcome import Measurement, Prediction, Proof, Reason, Rejected, Resources
from flashgen.spec import AttentionSpec, Workload
from flashgen.store.evidence import EvidenceKind
from flashgen.tune.space import Space
from flashgen.tune.stages import Candidate, Compiled, Times

H200 = find_gpu("h200")
WORKLOAD = Workload(batch=4, heads_q=16, heads_kv=16, seqlen_q=4096, seqlen_k=4096)
PROOF = Proof(
    suite="recorded",
    suite_hash="0123456789ab",
    where="gpu",
    dtypes=("bf16",),
    probes=3,
    worst_ratio=0.5,
    worst_probe="ragged",
    seed=1,
    repeats=2,
)


def spec_of(dtype: str = "bf16", head_dim: int = 128, **fields: bool | str) -> AttentionSpec:
    return AttentionSpec(dtype=dtype, head_dim=head_dim, head_dim_v=head_dim, **fields)  # type: ignore[arg-type]


def config(m: int = 128, n: int = 64, warps: int = 8, stages: int = 2, **knobs: int | bool) -> TlConfig:
    return TlConfig(BLOCK_M=m, BLOCK_N=n, num_warps=warps, num_stages=stages, **knobs)  # type: ignore[arg-type]


def small_space() -> Space:
    """Forty-eight configs whose product has holes, as real ones have."""
    return Space(
        configs=tuple(
            config(m, n, warps, stages)
            for m in (32, 64, 128, 256)
            for n in (32, 64, 128)
            for warps in (4, 8)
            for stages in (1, 2, 3)
            if m >= 16 * warps or n == 32
        )
    )


def plain_us(candidate: Candidate) -> float:
    """A smooth landscape over the tile, with one best config on any space that has 128 x 64 x 8 x 2."""
    c = candidate.config
    off = (math.log2(c.BLOCK_M / 128), math.log2(c.BLOCK_N / 64), math.log2(c.num_warps / 8), c.num_stages - 2)
    extra = sum(bool(value) for name, value in c.knobs().items() if name in ("maxnreg", "programs_per_sm"))
    return 100.0 * (1 + 0.2 * sum(x * x for x in off) + 0.05 * extra)


def plain_resources(candidate: Candidate) -> Resources:
    c = candidate.config
    return Resources(shared_bytes=1024 * c.num_stages, registers=128, spill_bytes=0, num_warps=c.num_warps)


def plain_proof(candidate: Candidate) -> Proof:
    return replace(PROOF, dtypes=(candidate.spec.dtype,))


@dataclass
class Replay:
    """Answers from functions of the candidate, and keeps what it was asked.

    `us` gives one time for all `workloads`, or a list of theirs.
    """

    kind: EvidenceKind = "measured"
    resources: Callable[[Candidate], Resources | Rejected] = plain_resources
    proof: Callable[[Candidate], Proof | Rejected] = plain_proof
    us: Callable[[Candidate], float | list[float] | Rejected] = plain_us
    workloads: int = 1
    compiled: list[Candidate] = field(default_factory=list)
    proven: list[tuple[Candidate, bool]] = field(default_factory=list)
    shown: dict[tuple[Candidate, bool], Proof] = field(default_factory=dict)
    glanced: list[Candidate] = field(default_factory=list)
    timed: list[Candidate] = field(default_factory=list)

    def compile(self, candidates: Sequence[Candidate]) -> Iterator[tuple[int, Resources | Rejected]]:
        self.compiled.extend(candidates)
        # Compilers finish in any order.
        yield from reversed([(index, self.resources(candidate)) for index, candidate in enumerate(candidates)])

    def prove(self, candidate: Candidate, *, thorough: bool = False) -> Proof | Rejected:
        """Once, as the real stages do."""
        if (candidate, thorough) not in self.shown:
            self.proven.append((candidate, thorough))
            if isinstance(found := self.proof(candidate), Rejected):
                return found
            self.shown[candidate, thorough] = found
        return self.shown[candidate, thorough]

    def glance(self, compiled: Compiled, best_us: float) -> Times | Rejected:
        self.glanced.append(compiled.candidate)
        return self._times(compiled.candidate)

    def time(self, finalists: Sequence[Compiled]) -> list[Times | Rejected]:
        self.timed.extend(finalist.candidate for finalist in finalists)
        return [self._times(finalist.candidate) for finalist in finalists]

    def notes(self) -> tuple[str, ...]:
        return ()

    def _times(self, candidate: Candidate) -> Times | Rejected:
        us = self.us(candidate)
        if isinstance(us, Rejected):
            return us
        each = us if isinstance(us, list) else [us] * self.workloads
        if self.kind == "predicted":
            return tuple(Prediction(us=us, bound="mma") for us in each)
        return tuple(Measurement(median_us=us, low_us=us * 0.999, high_us=us * 1.001, samples=20) for us in each)


def rejected(reason: Reason, detail: str = "as recorded") -> Rejected:
    return Rejected(reason=reason, detail=detail)
