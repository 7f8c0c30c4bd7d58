"""The stages on a GPU that is in this machine: kernels are proven and timed on it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

from flashgen.codegen.candidate import candidate_source
from flashgen.compiler.classify import run_failure
from flashgen.compiler.crosscompile import compile_many
from flashgen.compiler.invoke import call_of
from flashgen.compiler.load import load_source
from flashgen.hardware.target import GpuTarget
from flashgen.outcome import Measurement, Proof, Rejected, Resources
from flashgen.spec import Workload
from flashgen.store.evidence import EvidenceKind
from flashgen.tune.cuda_clock import CudaClock
from flashgen.tune.gpu_state import disturbances
from flashgen.tune.stages import Candidate, Compiled, Times
from flashgen.tune.suite import CANDIDATE
from flashgen.tune.timing import Call, all_measured, finals, glance, warm_up
from flashgen.verify.prove import prove_rule
from flashgen.verify.suites import FULL


class MeasuredStages:
    """Runs on device `index` of this process, whose facts are `target`; compiles in `jobs` processes."""

    kind: EvidenceKind = "measured"

    def __init__(self, target: GpuTarget, index: int, workloads: tuple[Workload, ...], *, jobs: int, seed: int) -> None:
        self._target, self._index, self._workloads = target, index, workloads
        self._jobs, self._seed = jobs, seed
        self._clock = CudaClock(index, target.l2_bytes)
        self._is_warm = False

    def compile(self, candidates: Sequence[Candidate]) -> Iterator[tuple[int, Resources | Rejected]]:
        return compile_many(candidates, self._target, self._jobs)

    def prove(self, candidate: Candidate, *, thorough: bool = False) -> Proof | Rejected:
        module, suite = load_source(candidate_source(*candidate)), FULL if thorough else CANDIDATE
        seed, device = fresh_seed(self._seed, candidate, suite.name), f"cuda:{self._index}"
        spec, rule = candidate.spec, module.PORTABLE[0]
        return prove_rule(module, rule, spec, spec.dtype, device, suite, seed, stop_at_failure=True)

    def glance(self, compiled: Compiled, best_us: float) -> Times | Rejected:
        try:
            calls = [self._call(compiled.candidate, workload) for workload in self._workloads]
            if not self._is_warm:
                self._is_warm = warm_up(self._clock, calls[0])
            return glance(self._clock, calls, best_us)
        except Exception as error:  # whatever a launch raises is the candidate's failure
            return run_failure(error)

    def time(self, finalists: Sequence[Compiled]) -> list[Times | Rejected]:
        try:
            return self._finals(finalists)
        except Exception as error:  # it may be any one's failure
            if len(finalists) == 1:
                return [run_failure(error)]
            return [self.time([finalist])[0] for finalist in finalists]

    def notes(self) -> tuple[str, ...]:
        import torch

        uuid = getattr(torch.cuda.get_device_properties(self._index), "uuid", None)
        return disturbances(self._index, None if uuid is None else str(uuid))

    def _finals(self, finalists: Sequence[Compiled]) -> list[Times | Rejected]:
        rows: list[list[Measurement | Rejected]] = []
        for workload in self._workloads:
            calls = [self._call(finalist.candidate, workload) for finalist in finalists]
            warm_up(self._clock, calls[0])
            rows.append(finals(self._clock, calls))
        return [all_measured(column) for column in zip(*rows)]

    def _call(self, candidate: Candidate, workload: Workload) -> Call:
        """One launch of the candidate's kernels into tensors that are there already."""
        module = load_source(candidate_source(*candidate))
        # A window's bounds are arguments: unbounded, the kernel does the work that its TFLOP/s are counted for.
        return call_of(module, module.PORTABLE[0], candidate.spec, workload, f"cuda:{self._index}", (-1, -1))


def fresh_seed(seed: int, candidate: Candidate, suite: str) -> int:
    """A seed of its own for each candidate and suite, so that no two are shown the same numbers."""
    text = f"{seed}/{candidate.spec.key}/{candidate.config.key}/{suite}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4])
