"""How long a kernel takes: how many samples are enough, and what they amount to. The clock itself is injected."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import Protocol

from flashgen.outcome import Measurement, Reason, Rejected

Call = Callable[[], object]

_GLANCE_FIRST, _GLANCE_ROUNDS = 3, 12
_CLEARLY_SLOWER = 1.3  # over the best so far: more samples of such a candidate cannot make it a finalist
_BLOCK_ROUNDS, _MAX_ROUNDS = 24, 480
_WANTED_HALF_WIDTH = 0.002  # of the median: below what separates two runs
_STEADY = 0.01
_WARM_UP_ROUNDS, _MAX_WARM_UPS = 10, 60


class Clock(Protocol):
    def sample(self, calls: Sequence[Call], rounds: int) -> list[list[float]]:
        """Microseconds of every call, `rounds` of each, taken in turn: what disturbs one disturbs its rivals too."""


def median_ranks(samples: int, confidence: float = 0.95) -> tuple[int, int]:
    """The order statistics (from 0) between which the median lies with `confidence`: binomial, so free of any shape.

    Below six samples the whole range covers less than 95%, and is what there is.
    """
    below, cumulative, rank = (1 - confidence) / 2, 0.0, 0
    while rank < (samples - 1) // 2:
        cumulative += math.comb(samples, rank) / 2**samples
        if cumulative > below:
            break
        rank += 1
    low = max(rank - 1, 0)
    return low, samples - 1 - low


def summarise(samples: Sequence[float]) -> Measurement | Rejected:
    """Median and its 95% interval, unless a sample is no time at all: then none of them can be trusted."""
    wrong = [us for us in samples if not 0 < us < math.inf]
    if wrong or not samples:
        shown = f"{len(wrong)} of {len(samples)} samples are no time, such as {wrong[0]} us" if wrong else "no samples"
        return Rejected(reason=Reason.TIMING, detail=shown)
    ordered = sorted(samples)
    low, high = median_ranks(len(ordered))
    return Measurement(
        median_us=statistics.median(ordered), low_us=ordered[low], high_us=ordered[high], samples=len(ordered)
    )


def warm_up(clock: Clock, call: Call) -> bool:
    """Runs `call` until two rounds agree within 1%, and says whether they did: clocks rise, then power caps bite."""
    before = math.inf
    for _ in range(_MAX_WARM_UPS):
        (samples,) = clock.sample([call], _WARM_UP_ROUNDS)
        now = statistics.median(samples)
        if abs(now - before) <= _STEADY * now:
            return True
        before = now
    return False


def glance(clock: Clock, calls: Sequence[Call], best_us: float) -> tuple[Measurement, ...] | Rejected:
    """A few samples of every call (one a workload); very few if the first are clearly slower than `best_us`, which is
    the geometric mean over the same workloads."""
    samples = clock.sample(calls, _GLANCE_FIRST)
    first = [summarise(each) for each in samples]
    medians = [each.median_us for each in first if isinstance(each, Measurement)]
    if len(medians) == len(calls) and statistics.geometric_mean(medians) <= _CLEARLY_SLOWER * best_us:
        more = clock.sample(calls, _GLANCE_ROUNDS - _GLANCE_FIRST)
        first = [summarise(few + many) for few, many in zip(samples, more)]
    return all_measured(first)


def all_measured(found: Sequence[Measurement | Rejected]) -> tuple[Measurement, ...] | Rejected:
    """The measurements, or the first that is none."""
    for each in found:
        if isinstance(each, Rejected):
            return each
    return tuple(each for each in found if isinstance(each, Measurement))


def finals(clock: Clock, calls: Sequence[Call]) -> list[Measurement | Rejected]:
    """Interleaved samples of rival calls, until every median is known well or the rounds are used up."""
    samples: list[list[float]] = [[] for _ in calls]
    found: list[Measurement | Rejected] = []
    while not calls or len(samples[0]) < _MAX_ROUNDS:
        for kept, new in zip(samples, clock.sample(calls, _BLOCK_ROUNDS)):
            kept.extend(new)
        found = [summarise(each) for each in samples]
        if all(isinstance(each, Rejected) or _is_sharp(each) for each in found):
            break
    return found


def _is_sharp(found: Measurement) -> bool:
    return found.high_us - found.low_us <= 2 * _WANTED_HALF_WIDTH * found.median_us
