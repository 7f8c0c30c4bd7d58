"""The stages on a GPU of this machine: kernels are proven and timed on it, in a process that may die."""

from __future__ import annotations

import hashlib
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from flashgen.compiler.crosscompile import Unit, compile_many, start_compilers, unit_of
from flashgen.compiler.known_bad import bad_key, known_bad, note_bad
from flashgen.hardware.target import GpuTarget
from flashgen.outcome import Proof, Rejected
from flashgen.spec import Workload
from flashgen.store.evidence import EvidenceKind
from flashgen.tune.gpu_worker import GpuWorker, gpu_worker
from flashgen.tune.stages import Answers, Candidate, Compiled, Times
from flashgen.tune.suite import CANDIDATE
from flashgen.verify.suites import FULL
from flashgen.verify.worker import Job

_Found = TypeVar("_Found")
_TIMING = "timing"
_WAITING, _PROVING = "waiting for compilers", "proving"  # what a run's seconds go to, beside timing


class MeasuredStages:
    """Runs on GPU `index`, whose facts are `target`, in `worker` (default: the process kept for it); compiles in `jobs`
    processes.

    What crashes the process, or never ends, is rejected, and known from then on.
    """

    kind: EvidenceKind = "measured"

    def __init__(
        self,
        target: GpuTarget,
        index: int,
        workloads: tuple[Workload, ...],
        *,
        jobs: int,
        seed: int,
        worker: GpuWorker | None = None,
    ) -> None:
        self._target, self._workloads = target, workloads
        self._jobs, self._seed = jobs, seed
        self._worker = worker or gpu_worker(index, target.l2_bytes)
        self._worker.start()  # it and the compilers import torch at the same time
        start_compilers()
        self._notes: tuple[str, ...] = ()
        self._spent: defaultdict[str, float] = defaultdict(float)
        self._proofs: dict[tuple[Candidate, bool], Proof] = {}

    def compile(self, candidates: Sequence[Candidate]) -> Answers:
        return self._awaited(compile_many(candidates, self._target, self._jobs))

    def prove(self, candidate: Candidate, *, thorough: bool = False) -> Proof | Rejected:
        """Once: the same seed would show the same again."""
        if (known := self._proofs.get((candidate, thorough))) is not None:
            return known
        found = self._prove(candidate, thorough)
        if isinstance(found, Proof):
            self._proofs[candidate, thorough] = found
        return found

    def _prove(self, candidate: Candidate, thorough: bool) -> Proof | Rejected:
        unit, suite = unit_of(*candidate), FULL if thorough else CANDIDATE
        job = Job(
            source=unit.source,
            dtype=candidate.spec.dtype,
            seed=fresh_seed(self._seed, candidate, suite.name),
            spec=candidate.spec,
            suite=suite.name,
            stop_at_failure=True,
        )
        with self._spending(_PROVING):
            return self._unless_known(
                unit, f"proof {suite.name}", lambda: self._worker.prove(job, self._worker.silence_s)
            )

    def glance(self, compiled: Compiled, best_us: float) -> Times | Rejected:
        unit = unit_of(*compiled.candidate)
        with self._spending(_TIMING):
            return self._unless_known(unit, _TIMING, lambda: self._worker.glance(unit, self._workloads, best_us))

    def time(self, finalists: Sequence[Compiled]) -> list[Times | Rejected]:
        units = [unit_of(*finalist.candidate) for finalist in finalists]
        known = [known_bad(self._key(unit, _TIMING)) for unit in units]
        with self._spending(_TIMING):
            times = iter(self._timed([unit for unit, bad in zip(units, known) if bad is None]))
        return [bad or next(times) for bad in known]

    def notes(self) -> tuple[str, ...]:
        spent = ", ".join(f"{self._spent[what]:.0f} s {what}" for what in (_WAITING, _PROVING, _TIMING))
        self._spent.clear()
        return (*self._notes, spent)

    @contextmanager
    def _spending(self, what: str) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        finally:
            self._spent[what] += time.monotonic() - began

    def _awaited(self, answers: Answers) -> Answers:
        while True:
            with self._spending(_WAITING):
                answer = next(answers, None)
            if answer is None:
                return
            yield answer

    def _timed(self, units: Sequence[Unit]) -> list[Times | Rejected]:
        """Where the process does not survive, each is timed apart to find whose fault it was, and the others again."""
        if not units:
            return []
        found = self._worker.time(units, self._workloads)
        if not isinstance(found, Rejected):
            self._notes = found.notes
            return found.times
        if len(units) == 1:
            note_bad(self._key(units[0], _TIMING), found)
            return [found]
        apart = [self._timed([unit])[0] for unit in units]
        standing = [unit for unit, times in zip(units, apart) if not isinstance(times, Rejected)]
        if len(standing) == len(units):  # it does not happen to any one of them
            return apart
        again = iter(self._timed(standing))
        return [times if isinstance(times, Rejected) else next(again) for times in apart]

    def _unless_known(self, unit: Unit, work: str, ask: Callable[[], _Found | Rejected]) -> _Found | Rejected:
        key = self._key(unit, work)
        if (known := known_bad(key)) is not None:
            return known
        if isinstance(found := ask(), Rejected):
            note_bad(key, found)
        return found

    def _key(self, unit: Unit, work: str) -> str:
        return bad_key(unit.source, self._target, work)


def fresh_seed(seed: int, candidate: Candidate, suite: str) -> int:
    """A seed of its own for each candidate and suite, so that no two are shown the same numbers."""
    text = f"{seed}/{candidate.spec.key}/{candidate.config.key}/{suite}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4])
