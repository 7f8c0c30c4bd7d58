"""What the funnel does to a candidate, as an interface: a compiler and a GPU, a compiler alone, or a recorded table."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from flashgen.config import KernelConfig
from flashgen.outcome import Measurement, Prediction, Proof, Rejected, Resources
from flashgen.spec import AttentionSpec
from flashgen.store.evidence import EvidenceKind

Times = tuple[Measurement | Prediction, ...]
Answers = Iterator[tuple[int, Resources | Rejected]]  # of compilers, by the candidate's index


class Candidate(NamedTuple):
    """What is computed, and how it is tiled: all that a kernel's text and binary depend on."""

    spec: AttentionSpec
    config: KernelConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class Compiled:
    """A candidate that the compiler accepted, and what it needs."""

    candidate: Candidate
    resources: Resources

    @property
    def config(self) -> KernelConfig:
        return self.candidate.config


class Stages(Protocol):
    """The back-end of a search. Times come one a workload, in the order of the workloads it was made for.

    Where `kind` is measured, a candidate is proven before it is timed. Where it is predicted, times are cheap and
    proofs dear: only candidates that would win are proven. What crashes or never ends is Rejected like the rest.
    """

    @property
    def kind(self) -> EvidenceKind: ...

    def compile(self, candidates: Sequence[Candidate]) -> Answers:
        """(index, answer) of every candidate, in any order. Compilers begin at once, not when answers are asked for."""

    def prove(self, candidate: Candidate, *, thorough: bool = False) -> Proof | Rejected:
        """The record that the candidate is exact: enough to be timed, or `thorough` enough to be a rule's proof."""

    def glance(self, compiled: Compiled, best_us: float) -> Times | Rejected:
        """A short timing. One that is clearly slower than `best_us` (infinite at first) may be cut shorter still."""

    def time(self, finalists: Sequence[Compiled]) -> list[Times | Rejected]:
        """Times fit to choose by: of all finalists together, with intervals."""

    def notes(self) -> tuple[str, ...]:
        """What a reader of the times should know, such as a GPU that was busy or slowed down."""


def typical_us(time: Measurement | Prediction) -> float:
    return time.median_us if isinstance(time, Measurement) else time.us


def score_us(times: Times) -> float:
    """What a search minimises: the geometric mean over the workloads, so that no workload outweighs another."""
    return geometric_mean([typical_us(time) for time in times])


def geometric_mean(values: Sequence[float]) -> float:
    return math.exp(math.fsum(map(math.log, values)) / len(values))
