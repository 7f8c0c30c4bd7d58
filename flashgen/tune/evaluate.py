"""One candidate through the gates of the funnel. Whatever goes wrong with it comes back as data."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from flashgen.hardware.target import GpuTarget
from flashgen.outcome import Proof, Reason, Rejected, Resources
from flashgen.resources.limits import over_limit
from flashgen.tune.stages import Candidate, Compiled, Stages, Times, score_us, typical_us


class Gate(StrEnum):
    """Where a candidate fell."""

    COMPILE = "compile"
    PROVE = "prove"
    TIME = "time"


@dataclass(frozen=True, kw_only=True, slots=True)
class Fallen:
    """A candidate that a gate rejected. `resources` is None where the compiler gave none."""

    gate: Gate
    rejected: Rejected
    resources: Resources | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluated:
    """A candidate that came through. `proof` is None as long as it was not proven in this process."""

    compiled: Compiled
    times: Times
    proof: Proof | None = None

    @property
    def us(self) -> float:
        return score_us(self.times)


def evaluate(
    candidate: Candidate, answer: Resources | Rejected, target: GpuTarget, stages: Stages, best_us: float = math.inf
) -> Evaluated | Fallen:
    """Takes the compiler's `answer` about a candidate through gate, proof (where kernels run) and a short timing."""
    if isinstance(answer, Rejected):
        return Fallen(gate=Gate.COMPILE, rejected=answer)
    if (over := over_limit(answer, target)) is not None:
        return Fallen(gate=Gate.COMPILE, rejected=over, resources=answer)
    proof = stages.prove(candidate) if stages.kind == "measured" else None
    if isinstance(proof, Rejected):
        return Fallen(gate=Gate.PROVE, rejected=proof, resources=answer)
    compiled = Compiled(candidate=candidate, resources=answer)
    times = usable(stages.glance(compiled, best_us))
    if isinstance(times, Rejected):
        return Fallen(gate=Gate.TIME, rejected=times, resources=answer)
    return Evaluated(compiled=compiled, times=times, proof=proof)


def usable(times: Times | Rejected) -> Times | Rejected:
    """`times`, unless one of them is no time: zero, negative, infinite or NaN."""
    if isinstance(times, Rejected):
        return times
    for time in times:
        us = typical_us(time)
        if not 0 < us < math.inf:
            return Rejected(reason=Reason.TIMING, detail=f"a time of {us} us is no time")
    return times if times else Rejected(reason=Reason.TIMING, detail="no workload was timed")
