"""Measured rules timed again on the GPU that they are for, against the times in their file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from flashgen.codegen.candidate import candidate_source
from flashgen.compiler.classify import run_failure
from flashgen.compiler.invoke import call_of
from flashgen.compiler.load import load_source
from flashgen.hardware.target import GpuTarget
from flashgen.outcome import Measurement, Rejected
from flashgen.spec import Workload
from flashgen.store.entry import TunedEntry
from flashgen.store.evidence import Timing
from flashgen.tune.timing import Clock, finals, warm_up

Clocked = Callable[[TunedEntry, Workload], Measurement | Rejected]


class Pace(StrEnum):
    AS_RECORDED = "as recorded"
    FASTER = "faster"
    SLOWER = "slower"
    FAILED = "failed"


@dataclass(frozen=True, kw_only=True, slots=True)
class Retimed:
    """One workload of a rule, then and now. `margin` is the change, as a part of the recorded median, that counts."""

    entry: TunedEntry
    then: Timing
    now: Measurement | Rejected
    margin: float

    @property
    def now_us(self) -> float | None:
        """The median now, None where there is none."""
        return None if isinstance(self.now, Rejected) else self.now.median_us

    @property
    def ratio(self) -> float | None:
        """The median now over the one in the file."""
        return None if self.now_us is None else self.now_us / self.then.median_us

    @property
    def pace(self) -> Pace:
        if self.ratio is None:
            return Pace.FAILED
        if self.ratio > 1 + self.margin:
            return Pace.SLOWER
        return Pace.FASTER if self.ratio < 1 - self.margin else Pace.AS_RECORDED

    @property
    def holds(self) -> bool:
        return self.pace in (Pace.AS_RECORDED, Pace.FASTER)


def retime(entries: Iterable[TunedEntry], time: Clocked, margin: float) -> Iterator[Retimed]:
    """Every workload of the measured entries, as it is done; predicted ones have no time to compare with."""
    for entry in entries:
        for then in entry.evidence.timings:
            if not then.is_predicted:
                yield Retimed(entry=entry, then=then, now=time(entry, then.workload), margin=margin)


def clocked_on(target: GpuTarget, index: int) -> Clocked:
    """What times a rule's kernels on device `index` of this process, as `tune` does."""
    from flashgen.tune.cuda_clock import CudaClock

    clock = CudaClock(index, target.l2_bytes)
    return lambda entry, workload: _time(clock, entry, workload, f"cuda:{index}")


def _time(clock: Clock, entry: TunedEntry, workload: Workload, device: str) -> Measurement | Rejected:
    try:
        module = load_source(candidate_source(entry.spec, entry.config))
        call = call_of(module, module.PORTABLE[0], entry.spec, workload, device, (-1, -1))
        warm_up(clock, call)
        (found,) = finals(clock, [call])
    except Exception as error:  # whatever a launch raises is the rule's failure
        return run_failure(error)
    return found
