"""The choice among finalists: a fixed rule decides where the times cannot, so that two runs write the same file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flashgen.outcome import Measurement, Prediction
from flashgen.tune.stages import Compiled, Times, geometric_mean, score_us, typical_us

# Medians of one interleaved run are sharper than a repetition of the run: clocks and placement in memory change.
RESOLUTION = 0.005


@dataclass(frozen=True, kw_only=True, slots=True)
class Timed:
    """A finalist and its times, one a workload."""

    compiled: Compiled
    times: Times

    @property
    def us(self) -> float:
        return score_us(self.times)

    @property
    def interval_us(self) -> tuple[float, float]:
        """The 95% interval of the geometric mean over workloads, taken end by end (wide rather than narrow)."""
        lows, highs = zip(*(_interval(time) for time in self.times))
        return geometric_mean(lows), geometric_mean(highs)

    @property
    def preference(self) -> tuple[int, int, str]:
        """What decides among equals: least shared memory, then fewest warps, then the key."""
        resources = self.compiled.resources
        return resources.shared_bytes, resources.num_warps, self.compiled.config.key


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """The winner, the others that could not be told apart from the best, and what the winner gives away.

    Regret is the winner's time over the best finalist's for one workload, less one.
    """

    winner: Timed
    tied: tuple[Timed, ...]
    worst_regret: float
    mean_regret: float


def choose(finalists: Sequence[Timed], resolution: float = RESOLUTION) -> Choice:
    """The preferred one of the finalists (at least one) whose times cannot be told apart from the best's.

    They can be told apart when their intervals do not touch and are further than `resolution` from each other.
    """
    best = min(finalists, key=lambda one: (one.us, one.preference))
    reach = max(best.interval_us[1], best.us) * (1 + resolution)
    tied = [one for one in finalists if one.interval_us[0] <= reach]
    winner = min(tied, key=lambda one: one.preference)
    regrets = _regrets(winner, finalists)
    mean = min(sum(regrets) / len(regrets), max(regrets))  # rounding must not lift the mean above the worst
    others = tuple(one for one in tied if one is not winner)
    return Choice(winner=winner, tied=others, worst_regret=max(regrets), mean_regret=mean)


def _interval(time: Measurement | Prediction) -> tuple[float, float]:
    return (time.low_us, time.high_us) if isinstance(time, Measurement) else (time.us, time.us)


def _regrets(winner: Timed, finalists: Sequence[Timed]) -> list[float]:
    best = [min(map(typical_us, times)) for times in zip(*(one.times for one in finalists))]
    return [typical_us(time) / least - 1 for time, least in zip(winner.times, best)]
