"""One candidate through the gates of the funnel. Whatever goes wrong with it comes back as data."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from flashgen.errors import FlashgenError
from flashgen.hardware.target import GpuTarget
from flashgen.outcome import Proof, Reason, Rejected, Resources
from flashgen.tune.stages import Candidate, Compiled, Stages, Times, score_us, typical_us

# Bytes a thread: a few registers saved around a loop cost little, and the clock sees it; more land inside the loop.
MAX_SPILL_BYTES = 128


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


def over_limit(resources: Resources, target: GpuTarget) -> Rejected | None:
    """Why a kernel that compiled cannot or should not run on `target`, or None."""
    need, limit = resources.shared_bytes, target.smem_per_block
    if need > limit:
        return Rejected(reason=Reason.SRAM, detail=f"needs {need} bytes of shared memory, {target.slug} has {limit}")
    if resources.spill_bytes > MAX_SPILL_BYTES:
        spills = f"spills {resources.spill_bytes} bytes a thread at {resources.registers} registers"
        return Rejected(reason=Reason.SPILLS, detail=f"{spills}, limit {MAX_SPILL_BYTES}")
    return None


def usable(times: Times | Rejected) -> Times | Rejected:
    """`times`, unless one of them is no time: zero, negative, infinite or NaN."""
    if isinstance(times, Rejected):
        return times
    for time in times:
        us = typical_us(time)
        if not 0 < us < math.inf:
            return Rejected(reason=Reason.TIMING, detail=f"a time of {us} us is no time")
    return times if times else Rejected(reason=Reason.TIMING, detail="no workload was timed")


def stop_if_fatal(candidate: Candidate, outcome: Fallen, stages: Stages) -> None:
    """Ends the run where a candidate crashed in this process: nothing that follows on the GPU could be trusted.

    Raises:
        FlashgenError: names the candidate.
    """
    if stages.kind != "measured" or outcome.gate == Gate.COMPILE:
        return
    if outcome.rejected.reason == Reason.CRASHED:
        raise FlashgenError(
            f"{candidate.config.key} for {candidate.spec.key} left the GPU unusable to this process: "
            f"{outcome.rejected.detail}\n  next: run again with --storage FILE; the config is then passed by"
        )
