"""Times contenders side by side: same tensors, interleaved samples, several rounds, every sample kept."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from flashgen.bench.agreement import AGREE, AGREE_FP8, faults
from flashgen.bench.call import Prepared, draw, prepare
from flashgen.bench.contenders import Contender
from flashgen.bench.counters import Counted
from flashgen.bench.suites import BenchRow
from flashgen.compiler.classify import one_line
from flashgen.tune.timing import Clock

_SAMPLES_A_ROUND = 7


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
    """What is known of one row; `counted` is empty where nobody asked for counters."""

    row: BenchRow
    timed: tuple[Timed, ...]
    counted: tuple[Counted, ...] = ()

    def tflops(self, timed: Timed) -> float:
        return self.row.flops / timed.median_us * 1e-6

    def rates(self) -> list[float | None]:
        """TFLOP/s of every contender, None where it was not timed."""
        return [self.tflops(timed) if timed.rounds else None for timed in self.timed]


def bench(
    rows: Sequence[BenchRow], contenders: Sequence[Contender], clock: Clock, device: str, rounds: int = 5
) -> Iterator[RowResult]:
    """A result for each row, as it is done, on a device such as `cuda:0`."""
    for row in rows:
        yield _bench_row(row, contenders, clock, device, rounds)


def _bench_row(row: BenchRow, contenders: Sequence[Contender], clock: Clock, device: str, rounds: int) -> RowResult:
    ready, missing = _prepare_all(row, contenders, device)
    answers, agree = (
        {name: prepared.answer for name, prepared in ready.items()},
        AGREE_FP8 if row.spec.is_fp8 else AGREE,
    )
    missing |= faults(answers, row.dropout_p, agree)
    calls = {name: prepared.call for name, prepared in ready.items() if name not in missing}
    samples: dict[str, list[tuple[float, ...]]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, taken in zip(calls, clock.sample(list(calls.values()), _SAMPLES_A_ROUND)):
            samples[name].append(tuple(round(us, 2) for us in taken))
    names = [contender.name for contender in contenders]
    timed = (Timed(contender=n, rounds=tuple(samples.get(n, ())), missing=missing.get(n, "")) for n in names)
    return RowResult(row=row, timed=tuple(timed))


def _prepare_all(
    row: BenchRow, contenders: Sequence[Contender], device: str
) -> tuple[dict[str, Prepared], dict[str, str]]:
    """The calls that can be made, and why the others cannot."""
    inputs, ready, missing = draw(row, device), {}, {}
    for contender in contenders:
        try:
            ready[contender.name] = prepare(row, contender, inputs)
        except Exception as error:  # a peer that is not here or fails is a gap in the table, and says why
            missing[contender.name] = one_line(error, limit=160)
    return ready, missing
