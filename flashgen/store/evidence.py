"""Why a rule holds its config: the timings behind it, measured or predicted, and how far it is from the best."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from flashgen.errors import TunedConfigError
from flashgen.outcome import Measurement, Prediction
from flashgen.resources.fit import HeldOut
from flashgen.spec import AttentionSpec, Workload

EvidenceKind = Literal["measured", "predicted"]


def significant(value: float, digits: int = 5) -> float:
    """`value` to five significant digits: finer than any clock repeats, short enough to review in a file."""
    return float(f"{value:.{digits}g}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Timing:
    """Kernel time of one workload, in microseconds, and the TFLOP/s it amounts to.

    Measured: the median, its 95% interval, and the samples behind it; `bound` is empty. Predicted: one number three
    times, no samples, and what bounds it (`mma`, `hbm` ...).

    Raises:
        TunedConfigError: a time that is not positive and finite, or lies outside its interval.
    """

    workload: Workload
    median_us: float
    low_us: float
    high_us: float
    samples: int
    tflops: float
    bound: str = ""

    def __post_init__(self) -> None:
        for name in ("median_us", "low_us", "high_us", "tflops"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise TunedConfigError(f"{name} {value!r} is not a positive number")
        if not self.low_us <= self.median_us <= self.high_us:
            raise TunedConfigError(f"median_us {self.median_us} is outside {self.low_us} to {self.high_us}")
        if self.is_predicted and not (self.bound and self.low_us == self.high_us):
            raise TunedConfigError("a timing without samples is a prediction: one time, and what bounds it")
        if not self.is_predicted and (self.samples < 0 or self.bound):
            raise TunedConfigError(f"a measured timing has samples (not {self.samples}) and no bound ({self.bound!r})")

    @property
    def is_predicted(self) -> bool:
        return self.samples == 0

    @classmethod
    def measured(cls, spec: AttentionSpec, workload: Workload, measurement: Measurement) -> Timing:
        """The measurement as a file holds it: to five significant digits, with its TFLOP/s."""
        return cls(
            workload=workload,
            median_us=significant(measurement.median_us),
            low_us=significant(measurement.low_us),
            high_us=significant(measurement.high_us),
            samples=measurement.samples,
            tflops=_tflops(spec, workload, measurement.median_us),
        )

    @classmethod
    def predicted(cls, spec: AttentionSpec, workload: Workload, prediction: Prediction) -> Timing:
        """The prediction as a file holds it: to five significant digits, with its TFLOP/s."""
        us = significant(prediction.us)
        return cls(
            workload=workload,
            median_us=us,
            low_us=us,
            high_us=us,
            samples=0,
            tflops=_tflops(spec, workload, prediction.us),
            bound=prediction.bound,
        )


def _tflops(spec: AttentionSpec, workload: Workload, us: float) -> float:
    return significant(workload.flops(spec) / us / 1e6) if us > 0 else math.nan


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """How a config did on each workload it was tuned on, and against how many others.

    `candidates` were timed (or predicted); `ties` of them, the winner not counted, could not be told apart from it.
    Regret is the rule's time over the best candidate's time for that workload, less one: 0.013 is 1.3% slower. Beside
    predictions, `model` says how far the cost model was off where it was checked; rules of older files have none.

    Raises:
        TunedConfigError: timings of the other kind, none, two of one workload, counts and regrets that cannot be, or a
            check of the cost model beside measurements.
    """

    kind: EvidenceKind
    timings: tuple[Timing, ...]
    ties: int
    candidates: int
    worst_regret: float
    mean_regret: float
    model: HeldOut | None = None

    def __post_init__(self) -> None:
        ordered = tuple(sorted(self.timings, key=lambda timing: timing.workload))
        object.__setattr__(self, "timings", ordered)
        if self.kind not in ("measured", "predicted"):
            raise TunedConfigError(f"evidence kind {self.kind!r} is neither measured nor predicted")
        if not ordered:
            raise TunedConfigError("evidence without a timing; it needs at least one workload")
        if any(timing.is_predicted != (self.kind == "predicted") for timing in ordered):
            raise TunedConfigError(f"the evidence is {self.kind}, and not all of its timings are")
        for one, following in pairwise(ordered):
            if one.workload == following.workload:
                raise TunedConfigError(f"workload {one.workload.key} has two timings")
        if not 0 <= self.ties < self.candidates:
            raise TunedConfigError(
                f"ties {self.ties} is not from 0 to the {self.candidates} candidates less the winner"
            )
        self._check_regrets()
        self._check_model()

    def _check_regrets(self) -> None:
        # The mean of equal numbers may exceed them by a rounding error.
        if not 0 <= self.mean_regret <= self.worst_regret * (1 + 1e-9) < math.inf:
            raise TunedConfigError(
                f"mean_regret {self.mean_regret} and worst_regret {self.worst_regret} are not 0 <= mean <= worst"
            )

    def _check_model(self) -> None:
        model = self.model
        if model is None:
            return
        if self.kind != "predicted":
            raise TunedConfigError("a check of the cost model beside measured evidence; it says nothing about that")
        if model.specs < 1 or not -1 <= model.rank_correlation <= 1:
            raise TunedConfigError(
                f"a cost model checked on {model.specs} specs with rank correlation {model.rank_correlation}: "
                "there is at least one spec, and a correlation is from -1 to 1"
            )
        if not 0 <= model.top5_regret <= model.first_regret < math.inf:
            raise TunedConfigError(
                f"top5_regret {model.top5_regret} and first_regret {model.first_regret} are not 0 <= top5 <= first"
            )
        if not 0 <= model.error < math.inf:
            raise TunedConfigError(f"error {model.error} of a cost model is not a number from 0 on")
