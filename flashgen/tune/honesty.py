"""What the sampler is worth: the regret of short searches over a table in which every config's time is known."""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from flashgen.config import KernelConfig
from flashgen.outcome import Measurement, Reason, Rejected, Resources
from flashgen.spec import AttentionSpec
from flashgen.tune.evaluate import Evaluated, Fallen, Gate
from flashgen.tune.identity import new_study
from flashgen.tune.space import Space
from flashgen.tune.stages import Candidate, Compiled

Table = Mapping[KernelConfig, float | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Regret:
    """Best time found after `trials`, over the table's best, less one: infinite while nothing was found. Over seeds."""

    trials: int
    median: float
    worst: float


def regret_curve(
    table: Table,
    spec: AttentionSpec,
    trials: Sequence[int],
    seeds: Sequence[int],
    first: Sequence[KernelConfig] = (),
) -> tuple[Regret, ...]:
    """The regret of studies that begin with the configs `first`. `table` holds microseconds, or None for a config that
    is rejected.

    Raises:
        ValueError: a table in which every config is rejected.
    """
    return _curve(table, trials, [_found_by_study(table, spec, max(trials), seed, first) for seed in seeds])


def random_curve(table: Table, trials: Sequence[int], seeds: Sequence[int]) -> tuple[Regret, ...]:
    """The regret of trying configs in random order: what a sampler has to beat."""

    def found(seed: int) -> Iterator[float | None]:
        order = list(table)
        random.Random(seed).shuffle(order)
        return (table[config] for config in order[: max(trials)])

    return _curve(table, trials, [list(found(seed)) for seed in seeds])


def _curve(table: Table, trials: Sequence[int], runs: Sequence[Sequence[float | None]]) -> tuple[Regret, ...]:
    times = [us for us in table.values() if us is not None]
    if not times:
        raise ValueError(f"all {len(table)} configs of the table are rejected: there is no best time to compare with")
    points = []
    for count in trials:
        regrets = [
            min((us for us in run[:count] if us is not None), default=float("inf")) / min(times) - 1 for run in runs
        ]
        points.append(Regret(trials=count, median=statistics.median(regrets), worst=max(regrets)))
    return tuple(points)


def _found_by_study(
    table: Table, spec: AttentionSpec, trials: int, seed: int, first: Sequence[KernelConfig]
) -> list[float | None]:
    study = new_study(spec, Space(configs=tuple(table)), seed)
    study.enqueue(first)
    found: list[float | None] = []
    while len(found) < trials and (asked := study.ask()) is not None:
        trial, config = asked
        study.tell(trial, config, _outcome(spec, config, table[config]))
        found.append(table[config])
    return found


def _outcome(spec: AttentionSpec, config: KernelConfig, us: float | None) -> Evaluated | Fallen:
    if us is None:
        return Fallen(gate=Gate.COMPILE, rejected=Rejected(reason=Reason.COMPILE, detail="rejected in the table"))
    resources = Resources(shared_bytes=0, registers=0, spill_bytes=0, num_warps=config.num_warps)
    time = Measurement(median_us=us, low_us=us, high_us=us, samples=1)
    return Evaluated(compiled=Compiled(candidate=Candidate(spec, config), resources=resources), times=(time,))
