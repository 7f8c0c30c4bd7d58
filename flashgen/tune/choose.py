"""The choice among finalists: a fixed rule decides where the times cannot, so that two runs write the same file."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from flashgen.config import KernelConfig
from flashgen.outcome import Measurement, Prediction
from flashgen.tune.stages import Compiled, Times, geometric_mean, score_us

# Medians of one interleaved run are sharper than a repetition of the run: clocks and placement in memory change.
RESOLUTION = 0.005


@dataclass(frozen=True, kw_only=True, slots=True)
class Incumbents:
    """What users have now. No rule may be slower than `safe`, which they get without tuning. Of equals, those stay that
    a file's rules hold (`held`): it changes where the times say so, and not because two runs fell to either side of
    the resolution."""

    safe: KernelConfig | None = None
    held: frozenset[KernelConfig] = frozenset()

    def __contains__(self, config: KernelConfig) -> bool:
        return config == self.safe or config in self.held


NOBODY = Incumbents()


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
        lows, highs = zip(*(interval_us(time) for time in self.times))
        return geometric_mean(lows), geometric_mean(highs)

    @property
    def preference(self) -> tuple[int, int, str]:
        """What decides among equals: least shared memory, then fewest warps, then the key."""
        resources = self.compiled.resources
        return resources.shared_bytes, resources.num_warps, self.compiled.config.key

    def on(self, workloads: Sequence[int]) -> Timed:
        """The finalist with its times on some of the workloads, by their positions."""
        return replace(self, times=tuple(self.times[position] for position in workloads))


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """The winner, and the others that could not be told apart from the best."""

    winner: Timed
    tied: tuple[Timed, ...]


def choose(finalists: Sequence[Timed], held: Collection[KernelConfig] = (), resolution: float = RESOLUTION) -> Choice:
    """The preferred one of the finalists (at least one) whose times cannot be told apart from the best's: one that is
    `held`, if any.

    They can be told apart when their intervals do not touch and are further than `resolution` from each other.
    """
    best = min(finalists, key=lambda one: (one.us, one.preference))
    reach = max(best.interval_us[1], best.us) * (1 + resolution)
    tied = [one for one in finalists if one.interval_us[0] <= reach]
    winner = min(tied, key=lambda one: (one.compiled.config not in held, one.preference))
    return Choice(winner=winner, tied=tuple(one for one in tied if one is not winner))


def interval_us(time: Measurement | Prediction) -> tuple[float, float]:
    """The 95% interval of one time; a prediction has none, and is its own two ends."""
    return (time.low_us, time.high_us) if isinstance(time, Measurement) else (time.us, time.us)
