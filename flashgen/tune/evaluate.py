"""One candidate through the gates of the funnel. Whatever goes wrong with it comes back as data."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from flashgen.hardware.target import GpuTarget
from flashgen.outcome import Reason, Rejected, Resources
from flashgen.resources.limits import over_limit
from flashgen.tune.stages import Candidate, Compiled, Stages, Times, score_us, typical_us

NEAR = 1.1  # over the best of the search: a short timing is no further off than that


class Gate(StrEnum):
    """Where a candidate fell."""

    COMPILE = "compile"
    TIME = "time"
    PROVE = "prove"


@dataclass(frozen=True, kw_only=True, slots=True)
class Fallen:
    """A candidate that a gate rejected. `resources` is None where the compiler gave none."""

    gate: Gate
    rejected: Rejected
    resources: Resources | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluated:
    """A candidate that came through. `proven` says whether it was shown to be exact, or only is too slow to win."""

    compiled: Compiled
    times: Times
    proven: bool = False

    @property
    def us(self) -> float:
        return score_us(self.times)


def evaluate(
    candidate: Candidate, answer: Resources | Rejected, target: GpuTarget, stages: Stages, best_us: float = math.inf
) -> Evaluated | Fallen:
    """Takes the compiler's `answer` about a candidate through gate, a short timing and, where kernels run, a proof.

    A proof takes many times as long as the timing, so only what may still win is proven: whatever is best, by which
    others are judged, is exact, and what else comes to the finals is proven there.
    """
    if isinstance(answer, Rejected):
        return Fallen(gate=Gate.COMPILE, rejected=answer)
    if (over := over_limit(answer, target)) is not None:
        return Fallen(gate=Gate.COMPILE, rejected=over, resources=answer)
    compiled = Compiled(candidate=candidate, resources=answer)
    times = usable(stages.glance(compiled, best_us))
    if isinstance(times, Rejected):
        return Fallen(gate=Gate.TIME, rejected=times, resources=answer)
    if stages.kind == "predicted" or score_us(times) > NEAR * best_us:
        return Evaluated(compiled=compiled, times=times)
    proof = stages.prove(candidate)
    if isinstance(proof, Rejected):
        return Fallen(gate=Gate.PROVE, rejected=proof, resources=answer)
    return Evaluated(compiled=compiled, times=times, proven=True)


def usable(times: Times | Rejected) -> Times | Rejected:
    """`times`, unless one of them is no time: zero, negative, infinite or NaN."""
    if isinstance(times, Rejected):
        return times
    for time in times:
        us = typical_us(time)
        if not 0 < us < math.inf:
            return Rejected(reason=Reason.TIMING, detail=f"a time of {us} us is no time")
    return times if times else Rejected(reason=Reason.TIMING, detail="no workload was timed")
