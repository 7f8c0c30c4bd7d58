"""The stages on a GPU that is in this machine: kernels are proven and timed on it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from flashgen.codegen.candidate import candidate_source
from flashgen.compiler.classify import run_failure
from flashgen.compiler.crosscompile import compile_many
from flashgen.compiler.load import load_source
from flashgen.hardware.target import GpuTarget
from flashgen.outcome import Measurement, Proof, Rejected, Resources
from flashgen.spec import AttentionSpec, Workload
from flashgen.store.evidence import EvidenceKind
from flashgen.tune.cuda_clock import CudaClock
from flashgen.tune.gpu_state import disturbances
from flashgen.tune.stages import Candidate, Compiled, Times
from flashgen.tune.suite import CANDIDATE
from flashgen.tune.timing import Call, all_measured, finals, glance, warm_up
from flashgen.verify.prove import prove_rule
from flashgen.verify.suites import FULL

if TYPE_CHECKING:
    import torch

_TORCH_NAMES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
_SOFTCAP = 30.0


@dataclass(frozen=True, kw_only=True, slots=True)
class _Tensors:
    """[Z, H, S, D] views of memory laid out [Z, S, H, D], as models hold it; lse [Z, Hq, Sq]."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    out: torch.Tensor
    lse: torch.Tensor


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
        """One launch of the candidate's kernel into tensors that are there already."""
        spec = candidate.spec
        module, x = load_source(candidate_source(*candidate)), _tensors(spec, workload, self._index)
        # A window's bounds are arguments: unbounded, the kernel does the work that its TFLOP/s are counted for.
        bounds = (-1, 0) if spec.causal else (-1, -1)
        scores: tuple[Any, ...] = (spec.head_dim**-0.5, *bounds, _SOFTCAP if spec.softcap else 0.0)
        return lambda: module._execute(module.PORTABLE[0], x.q, x.k, x.v, x.out, x.lse, *scores)


def fresh_seed(seed: int, candidate: Candidate, suite: str) -> int:
    """A seed of its own for each candidate and suite, so that no two are shown the same numbers."""
    text = f"{seed}/{candidate.spec.key}/{candidate.config.key}/{suite}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4])


@lru_cache(maxsize=4)
def _tensors(spec: AttentionSpec, workload: Workload, index: int) -> _Tensors:
    """Normal inputs, the same for all candidates of a spec: power, and so the clock, depends on the values."""
    import torch

    device, dtype = torch.device("cuda", index), getattr(torch, _TORCH_NAMES[spec.dtype])
    generator = torch.Generator(device).manual_seed(0)

    def heads(count: int, rows: int, width: int) -> torch.Tensor:
        shape = (workload.batch, rows, count, width)
        return torch.randn(shape, dtype=dtype, device=device, generator=generator).transpose(1, 2)

    return _Tensors(
        q=heads(workload.heads_q, workload.seqlen_q, spec.head_dim),
        k=heads(workload.heads_kv, workload.seqlen_k, spec.head_dim),
        v=heads(workload.heads_kv, workload.seqlen_k, spec.head_dim_v),
        out=heads(workload.heads_q, workload.seqlen_q, spec.head_dim_v),
        lse=torch.empty(workload.batch, workload.heads_q, workload.seqlen_q, device=device),
    )
