"""Rules, not tables: the few configs that serve all workloads of a spec, each over a range of lengths."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from flashgen.outcome import Measurement, Prediction
from flashgen.spec import Workload
from flashgen.store.entry import WorkloadRange
from flashgen.tune.choose import NOBODY, RESOLUTION, Choice, Incumbents, Timed, choose, interval_us
from flashgen.tune.stages import typical_us

# What a rule may give away on a workload. Two runs can differ by RESOLUTION in each of the two times that a regret is
# made of, so that up to 1% is noise; up to twice that is not worth another kernel to read, prove and keep fresh.
MARGIN = 0.02


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """The choice for the workloads of one range of lengths, `keys`, in the order of the choice's times.

    Regret is the winner's time on a workload over the best finalist's, less one.
    """

    keys: WorkloadRange
    workloads: tuple[Workload, ...]
    choice: Choice
    regrets: tuple[float, ...]

    @property
    def winner(self) -> Timed:
        return self.choice.winner

    @property
    def worst_regret(self) -> float:
        return max(self.regrets)

    @property
    def mean_regret(self) -> float:
        return min(sum(self.regrets) / len(self.regrets), self.worst_regret)  # rounding must not lift it above

    @property
    def excess(self) -> float:
        """The sum of what regrets are above the resolution: what two fits of equally many rules are compared by."""
        return sum(max(0.0, regret - RESOLUTION) for regret in self.regrets)


def fit_rules(
    finalists: Sequence[Timed],
    workloads: Sequence[Workload],
    incumbents: Incumbents = NOBODY,
    error: float = 0.0,
) -> tuple[Rule, ...]:
    """The fewest rules, by length, with no config that is clearly more than MARGIN slower than the best finalist on a
    workload of its range; of equally many, those with the least `excess`, then the shortest ranges first.

    Clearly: by the ends of both intervals that speak for the config. Nor is a config clearly slower, by more than
    RESOLUTION, than the safe one if that is a finalist. Workloads of one length stay together, and where no config is
    within the margin on all of them, the least that any gives away is. Of the configs that may have a range the tie
    rule takes one. Every length has a rule: the boundary between two that were timed is their geometric mean, so that
    a length has the rule of the timed one that is nearer to it by ratio.

    Times that are only predicted may be off by `error`: then that is the margin, and a range that the safe config may
    have has it, unless the times say that another is faster by more than that.

    There must be a finalist and a workload.
    """
    board = _Board(tuple(finalists), tuple(workloads), incumbents, error)
    fits: list[tuple[Rule, ...]] = [()]  # the best ones for the shortest 0, 1, 2 ... lengths
    for end in range(1, len(board.lengths) + 1):
        longer = (fits[start] + (rule,) for start in range(end) if (rule := board.rule(start, end)) is not None)
        fits.append(min(longer, key=_burden))
    return fits[-1]


def lengths_of(workloads: Sequence[Workload]) -> dict[int, tuple[int, ...]]:
    """The positions of the workloads of each seqlen_k, shortest first."""
    lengths = sorted({workload.seqlen_k for workload in workloads})
    return {n: tuple(i for i, workload in enumerate(workloads) if workload.seqlen_k == n) for n in lengths}


def _burden(rules: tuple[Rule, ...]) -> tuple[int, float, list[int]]:
    return len(rules), sum(rule.excess for rule in rules), [rule.keys.seqlen_k_min for rule in rules]


@dataclass(frozen=True)
class _Board:
    """Who may have which length."""

    finalists: tuple[Timed, ...]
    workloads: tuple[Workload, ...]
    incumbents: Incumbents
    error: float

    def rule(self, start: int, end: int) -> Rule | None:
        """The rule for the lengths from `start` to before `end`, by position; None where no config may have all."""
        allowed = [one for one, *lengths in zip(self.finalists, *self.allowed[start:end]) if all(lengths)]
        if not allowed:
            return None
        positions = [position for n in list(self.lengths)[start:end] for position in self.lengths[n]]
        choice = self._choice([one.on(positions) for one in allowed])
        best = [typical_us(self.best[position]) for position in positions]
        return Rule(
            keys=self._keys(start, end),
            workloads=tuple(self.workloads[position] for position in positions),
            choice=choice,
            regrets=tuple(typical_us(time) / least - 1 for time, least in zip(choice.winner.times, best)),
        )

    def _choice(self, allowed: list[Timed]) -> Choice:
        choice = choose(allowed, self.incumbents.held)
        near = [one for one in allowed if one.us <= choice.winner.us * (1 + self.error)]
        safe = self._safe(near)
        if safe is None or not self.error:
            return choice
        return Choice(winner=safe, tied=tuple(one for one in near if one is not safe))

    def _safe(self, among: Iterable[Timed]) -> Timed | None:
        return next((one for one in among if one.compiled.config == self.incumbents.safe), None)

    @cached_property
    def lengths(self) -> dict[int, tuple[int, ...]]:
        return lengths_of(self.workloads)

    @cached_property
    def best(self) -> list[Measurement | Prediction]:
        """The least time on each workload."""
        return [min(times, key=typical_us) for times in zip(*(one.times for one in self.finalists))]

    @cached_property
    def allowed(self) -> list[list[bool]]:
        """For each length, whether each finalist may serve it; one always may."""
        return [self._allowed(positions) for positions in self.lengths.values()]

    def _allowed(self, positions: tuple[int, ...]) -> list[bool]:
        safe = self._safe(self.finalists)
        sound = [
            safe is None or all(_behind(one.times[p], safe.times[p]) <= RESOLUTION for p in positions)
            for one in self.finalists
        ]
        behind = [max(_behind(one.times[p], self.best[p]) for p in positions) for one in self.finalists]
        least = min(each for each, may in zip(behind, sound) if may)
        limit = max(MARGIN, self.error, least + RESOLUTION)
        return [may and each <= limit for each, may in zip(behind, sound)]

    def _keys(self, start: int, end: int) -> WorkloadRange:
        ends = [0, *map(_boundary, self.lengths, list(self.lengths)[1:])]
        last = ends[end] if end < len(self.lengths) else None
        return WorkloadRange(seqlen_k_min=ends[start] + 1, seqlen_k_max=last)


def _boundary(shorter: int, longer: int) -> int:
    """The largest length that belongs to the shorter one: n with n / shorter <= longer / n."""
    return math.isqrt(shorter * longer)


def _behind(time: Measurement | Prediction, other: Measurement | Prediction) -> float:
    """How much slower `time` surely is than `other`, as a ratio less one."""
    return interval_us(time)[0] / interval_us(other)[1] - 1
