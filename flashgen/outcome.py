"""What came of a candidate. Failures are data: a candidate's own fault never raises out of the funnel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Reason(StrEnum):
    """Why a candidate fell, in the order of the funnel's stages."""

    CONSTRAINT = "constraint"  # the family's own rules exclude it
    SRAM = "sram"  # needs more shared memory than the target has
    COMPILE = "compile"  # the compiler refused or crashed
    SPILLS = "spills"  # compiled, but registers spill to local memory beyond the limit
    LAUNCH = "launch"  # would not start: threads, registers or memory at run time
    TIMEOUT = "timeout"  # did not end in time
    CRASHED = "crashed"  # took the process or the GPU context with it
    KILLED = "killed"  # its process was ended from outside: by a person, for want of host memory, by failing hardware
    INEXACT = "inexact"  # ran, and is not attention
    TIMING = "timing"  # ran and is exact, but gave no usable time (zero, negative, NaN)


@dataclass(frozen=True, kw_only=True, slots=True)
class Resources:
    """What the compiler says one kernel needs. Bytes, registers a thread, bytes of spilled local memory a thread."""

    shared_bytes: int
    registers: int
    spill_bytes: int
    num_warps: int  # as launched, a warp-specialised kernel's extra warps included


@dataclass(frozen=True, kw_only=True, slots=True)
class Rejected:
    """A candidate that fell: the stage's reason, and one line that says with numbers what happened."""

    reason: Reason
    detail: str

    @classmethod
    def of(cls, held: Mapping[str, Any]) -> Rejected:
        """What `held`, plain data with these fields, was made of; others are passed over.

        Raises:
            KeyError, ValueError: a field is missing, or the reason is none.
        """
        return cls(reason=Reason(held["reason"]), detail=held["detail"])


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurement:
    """Kernel time of one workload on one GPU. Microseconds; the interval is the median's, at 95%."""

    median_us: float
    low_us: float
    high_us: float
    samples: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Prediction:
    """Kernel time that the cost model expects, in microseconds, and what bounds it (`mma`, `softmax`, `hbm` ...)."""

    us: float
    bound: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Proof:
    """The record that a kernel was shown to be exact attention: against float64, every output within 2x the error of
    standard attention in the same dtype, every gradient within 3x.

    `where` is `gpu` or `interpreter`. `worst_ratio` is the largest error over its allowance (passing is <= 1) and
    `worst_probe` the probe that gave it. `dtypes` lists the dtypes that were run: the interpreter cannot show bf16.
    """

    suite: str
    suite_hash: str
    where: str
    dtypes: tuple[str, ...]
    probes: int
    worst_ratio: float
    worst_probe: str
    seed: int
    repeats: int  # runs of each probe that were compared bitwise


@dataclass(frozen=True, kw_only=True, slots=True)
class Toolchain:
    """Versions that a result depends on; results of different toolchains are never mixed."""

    flashgen: str
    triton: str
    torch: str
    kernels: str  # twelve hex digits over the text of a rule's kernels; of a study, over every template of kernels
