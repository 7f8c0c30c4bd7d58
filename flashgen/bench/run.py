"""Times contenders side by side: same tensors, interleaved samples, several rounds, every sample kept."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flashgen.bench.contenders import Contender
from flashgen.bench.suites import BenchRow
from flashgen.compiler.classify import one_line
from flashgen.tune.cuda_clock import CudaClock

if TYPE_CHECKING:
    import torch

_SAMPLES_A_ROUND = 7
_AGREE = 0.02  # relative Frobenius distance between two right answers in 16-bit


@dataclass(frozen=True, kw_only=True, slots=True)
class Timed:
    """One contender on one row. `rounds` holds the samples in microseconds; without any, `missing` says why."""

    contender: str
    rounds: tuple[tuple[float, ...], ...] = ()
    missing: str = ""

    @property
    def median_us(self) -> float:
        return statistics.median(us for samples in self.rounds for us in samples)


@dataclass(frozen=True, kw_only=True, slots=True)
class RowResult:
    row: BenchRow
    timed: tuple[Timed, ...]

    def tflops(self, timed: Timed) -> float:
        return self.row.workload.flops(self.row.spec) / timed.median_us * 1e-6

    def rates(self) -> list[float | None]:
        """TFLOP/s of every contender, None where it was not timed."""
        return [self.tflops(timed) if timed.rounds else None for timed in self.timed]


def bench(
    rows: Sequence[BenchRow], contenders: Sequence[Contender], index: int, l2_bytes: int, rounds: int = 5
) -> Iterator[RowResult]:
    """A result for each row, as it is done, on CUDA device `index`."""
    clock = CudaClock(index, l2_bytes)
    for row in rows:
        yield _bench_row(row, contenders, clock, index, rounds)


def _bench_row(row: BenchRow, contenders: Sequence[Contender], clock: CudaClock, index: int, rounds: int) -> RowResult:
    tensors = _tensors(row, index)
    calls, failed, expected = {}, {}, None
    for contender in contenders:
        try:
            call = contender.make(row, tensors)
            out = call()
            expected = out.float() if expected is None else expected
            if not (distance := float((out.float() - expected).norm() / expected.norm())) < _AGREE:
                raise ArithmeticError(f"differs from {contenders[0].name} by {distance:.3g} of the norm")
            calls[contender.name] = call
        except Exception as error:  # a peer that is not here or fails is a gap in the table, and says why
            failed[contender.name] = one_line(error, limit=160)
    samples: dict[str, list[tuple[float, ...]]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, taken in zip(calls, clock.sample(list(calls.values()), _SAMPLES_A_ROUND)):
            samples[name].append(tuple(round(us, 2) for us in taken))
    names = [contender.name for contender in contenders]
    timed = (Timed(contender=n, rounds=tuple(samples.get(n, ())), missing=failed.get(n, "")) for n in names)
    return RowResult(row=row, timed=tuple(timed))


def _tensors(row: BenchRow, index: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Normal q, k, v, contiguous [Z, H, S, D]: power, and so the clock, depends on the values."""
    import torch

    generator = torch.Generator(torch.device("cuda", index)).manual_seed(0)
    sizes, spec = row.workload, row.spec
    options: dict[str, Any] = {"dtype": torch.bfloat16, "device": generator.device, "generator": generator}
    q = torch.randn(sizes.batch, sizes.heads_q, sizes.seqlen_q, spec.head_dim, **options)
    k = torch.randn(sizes.batch, sizes.heads_kv, sizes.seqlen_k, spec.head_dim, **options)
    v = torch.randn(sizes.batch, sizes.heads_kv, sizes.seqlen_k, spec.head_dim_v, **options)
    return q, k, v
