"""Rules for a GPU that nobody tuned for: small tiles, loaded through pointers, that fit and compile everywhere.

The pseudo-target `portable` stands for the architectures of all known GPUs. Its times are predictions: the geometric
mean over one GPU of each architecture.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from flashgen.compiler.architectures import missing_compiler
from flashgen.compiler.crosscompile import compile_many, worst_of
from flashgen.config import KernelConfig, Knob
from flashgen.families import TlBackwardConfig, TlConfig
from flashgen.families.tl import TlFamily
from flashgen.families.tl_backward import TlBackwardFamily
from flashgen.hardware.target import GpuTarget
from flashgen.outcome import Prediction, Proof, Rejected, Resources
from flashgen.resources.limits import MAX_SPILL_BYTES
from flashgen.resources.portable import one_gpu_an_arch, portable_target
from flashgen.spec import AttentionSpec, Workload
from flashgen.store.entry import TunedEntry
from flashgen.store.evidence import EvidenceKind
from flashgen.tune.predicted import interpreted_proof, predicted_times
from flashgen.tune.progress import Progress
from flashgen.tune.request import TuneRequest
from flashgen.tune.result import TuneResult
from flashgen.tune.run import tune
from flashgen.tune.stages import Candidate, Compiled, Times, geometric_mean, typical_us

_TRIALS = 5  # each is compiled for every architecture


class PortableTl(TlFamily):
    """Family `tl` without the knobs that only some GPUs have, or that only pay on some."""

    def choices(self, spec: AttentionSpec, target: GpuTarget) -> dict[str, tuple[Knob, ...]]:
        return {
            "BLOCK_M": (16, 32) if spec.is_fp32 else (32, 64),
            "BLOCK_N": (16, 32),
            "num_warps": (4, 8),
            "num_stages": (1, 2),
            "longest_first": (spec.causal or spec.window,),
        }

    def likely_good(self, spec: AttentionSpec, target: GpuTarget) -> tuple[KernelConfig, ...]:
        rows = [(64, 32, 4, 2), (64, 32, 4, 1), (32, 32, 4, 1), (64, 32, 8, 1), (32, 16, 4, 1)]
        if spec.is_fp32:
            rows = [(32, 32, 4, 1), (32, 16, 4, 1), (16, 32, 4, 1), (16, 16, 4, 1)]
        longest_first = spec.causal or spec.window
        return tuple(
            TlConfig(BLOCK_M=m, BLOCK_N=n, num_warps=w, num_stages=s, longest_first=longest_first)
            for m, n, w, s in rows
        )


class PortableTlBackward(TlBackwardFamily):
    """Family `tl_backward` in the few tilings that compile for every architecture into 64 KiB of shared memory.

    Both passes keep blocks of one size. A head_dim of 256 leaves only the smallest tiles, and in fp32, where whole rows
    of tiles sit in registers, none that does not spill.
    """

    def space(self, spec: AttentionSpec, target: GpuTarget) -> Iterator[KernelConfig]:
        yield from (config for config in self.likely_good(spec, target) if self.excluded(spec, config, target) is None)

    def likely_good(self, spec: AttentionSpec, target: GpuTarget) -> tuple[KernelConfig, ...]:
        wide = max(spec.block_d, spec.block_dv)
        rows = [(128, 32, 8, 1), (64, 32, 4, 1), (64, 32, 8, 1), (64, 32, 4, 2)]
        if wide == 128:
            rows = [(64, 32, 8, 1), (64, 16, 4, 1), (64, 16, 8, 1)]
        elif wide > 128:
            rows = [(32, 16, 4, 1), (16, 16, 2, 1)]
        if spec.is_fp32:
            rows = [(32, 16, 4, 1), (16, 16, 8, 1)]
        return tuple(
            TlBackwardConfig.of_passes((step, kept, warps, stages), (kept, step, warps, stages))
            for kept, step, warps, stages in rows
        )


class PortableStages:
    """Compiles for every architecture that this toolchain compiles for; a candidate must hold on all of them."""

    kind: EvidenceKind = "predicted"

    def __init__(self, workloads: tuple[Workload, ...], *, jobs: int, seed: int) -> None:
        self._workloads, self._jobs, self._seed = workloads, jobs, seed
        self._answers: dict[Candidate, dict[GpuTarget, Resources]] = {}
        self._missing: dict[str, str] = {}
        self._targets = tuple(target for target in one_gpu_an_arch() if self._has_compiler(target))

    def compile(self, candidates: Sequence[Candidate]) -> Iterator[tuple[int, Resources | Rejected]]:
        standing = dict(enumerate(candidates))
        needs: dict[int, dict[GpuTarget, Resources]] = {index: {} for index in standing}
        for target in self._targets:
            asked = [index for index, each in standing.items() if each.spec.dtype != "bf16" or target.has_bf16]
            for position, answer in compile_many([standing[index] for index in asked], target, self._jobs):
                if isinstance(answer, Rejected):
                    del standing[asked[position]]
                    yield asked[position], replace(answer, detail=f"{target.arch}: {answer.detail}")
                elif answer.spill_bytes > MAX_SPILL_BYTES:  # no need to ask the other architectures
                    del standing[asked[position]]
                    yield asked[position], answer
                else:
                    needs[asked[position]][target] = answer
        for index, candidate in standing.items():
            self._answers[candidate] = needs[index]
            yield index, worst_of(list(needs[index].values()))

    def prove(self, candidate: Candidate, *, thorough: bool = False) -> Proof | Rejected:
        return interpreted_proof(candidate, self._seed)

    def glance(self, compiled: Compiled, best_us: float) -> Times | Rejected:
        """The geometric mean over the architectures; what bounds most of them bounds it."""
        columns = [
            predicted_times(replace(compiled, resources=resources), target, self._workloads)
            for target, resources in self._answers[compiled.candidate].items()
        ]
        return tuple(map(_mean, zip(*columns)))

    def time(self, finalists: Sequence[Compiled]) -> list[Times | Rejected]:
        return [self.glance(finalist, float("inf")) for finalist in finalists]

    def notes(self) -> tuple[str, ...]:
        archs = ", ".join(target.arch for target in self._targets)
        gone = tuple(
            f"not compiled for {arch}, for which this toolchain has no compiler: {why}"
            for arch, why in self._missing.items()
        )
        return (f"compiled for {archs}; predicted times are geometric means over these", *gone)

    def _has_compiler(self, target: GpuTarget) -> bool:
        why = missing_compiler(target, self._jobs)
        if why is not None:
            self._missing[target.arch] = why
        return why is None


def _mean(times: Times) -> Prediction:
    bounds = Counter(time.bound for time in times if isinstance(time, Prediction))
    return Prediction(us=geometric_mean([typical_us(time) for time in times]), bound=bounds.most_common(1)[0][0])


def tune_portable(
    specs: Sequence[AttentionSpec],
    *,
    jobs: int,
    seed: int = 0,
    held: tuple[TunedEntry, ...] = (),
    progress: Progress | None = None,
) -> tuple[TuneResult, ...]:
    """The rules of the pseudo-target, as `tune` gives them for a GPU; `held` are those that it has.

    Raises:
        NoFeasibleConfig: not one spec has a rule.
    """
    request = TuneRequest(
        target=portable_target(),
        present=False,
        specs=tuple(specs),
        families={family.name: family for family in (PortableTl(), PortableTlBackward())},
        trials=_TRIALS,
        seed=seed,
        held=held,
        jobs=jobs,
    )
    return tune(
        request, progress, lambda request, workloads: PortableStages(workloads, jobs=request.jobs, seed=request.seed)
    )
