"""The stages without the GPU: the real compiler, the cost model for a clock, Triton's interpreter for the proof."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from flashgen.codegen.candidate import candidate_source
from flashgen.compiler.crosscompile import compile_many
from flashgen.config import KernelConfig
from flashgen.families import FAMILIES, PassShape
from flashgen.hardware.target import GpuTarget
from flashgen.outcome import Proof, Rejected, Resources
from flashgen.resources.cost import predict
from flashgen.resources.limits import over_limit
from flashgen.resources.sram import sram_bound
from flashgen.spec import AttentionSpec, Workload
from flashgen.store.evidence import EvidenceKind
from flashgen.tune.stages import Candidate, Compiled, Times, score_us
from flashgen.verify.worker import RULE_TIMEOUT_S, prove_in_interpreter

_MAX_REGISTERS = 255  # a thread's, on every architecture here
_OTHER_REGISTERS = 40  # pointers, row statistics and loop state of a typical kernel


class PredictedStages:
    """Predicts for `target`; compiles in `jobs` processes."""

    kind: EvidenceKind = "predicted"

    def __init__(self, target: GpuTarget, workloads: tuple[Workload, ...], *, jobs: int, seed: int) -> None:
        self._target, self._workloads, self._jobs, self._seed = target, workloads, jobs, seed

    def compile(self, candidates: Sequence[Candidate]) -> Iterator[tuple[int, Resources | Rejected]]:
        return compile_many(candidates, self._target, self._jobs)

    def prove(self, candidate: Candidate, *, thorough: bool = False) -> Proof | Rejected:
        return interpreted_proof(candidate, self._seed)

    def glance(self, compiled: Compiled, best_us: float) -> Times | Rejected:
        return predicted_times(compiled, self._target, self._workloads)

    def time(self, finalists: Sequence[Compiled]) -> list[Times | Rejected]:
        return [predicted_times(finalist, self._target, self._workloads) for finalist in finalists]

    def notes(self) -> tuple[str, ...]:
        return ()


def interpreted_proof(candidate: Candidate, seed: int) -> Proof | Rejected:
    """The proof by Triton's interpreter, which multiplies bf16's bit patterns: a bf16 kernel is shown by its fp16 twin,
    the same lines with another element type."""
    spec = replace(candidate.spec, dtype="fp16") if candidate.spec.dtype == "bf16" else candidate.spec
    source = candidate_source(spec, candidate.config)
    return prove_in_interpreter(source, spec, seed, RULE_TIMEOUT_S, stop_at_failure=True)


def predicted_times(compiled: Compiled, target: GpuTarget, workloads: Sequence[Workload]) -> Times:
    spec, config = compiled.candidate
    return tuple(predict(spec, config, target, workload, compiled.resources) for workload in workloads)


def promising(
    configs: Sequence[KernelConfig], spec: AttentionSpec, target: GpuTarget, workloads: Sequence[Workload], limit: int
) -> list[KernelConfig]:
    """The `limit` configs that the cost model expects to be fastest, before any of them is compiled, best first.

    Those that seem to need more than they may come last. Of configs that the model cannot tell apart it names one.
    """

    def expected(config: KernelConfig) -> tuple[bool, float]:
        guess = Compiled(candidate=Candidate(spec, config), resources=estimate(spec, config, target))
        us = score_us(predicted_times(guess, target, workloads))
        return over_limit(guess.resources, target) is not None, us

    different: dict[tuple[bool, float], KernelConfig] = {}
    for config in sorted(configs, key=lambda config: config.key):
        different.setdefault(expected(config), config)
    return [different[rank] for rank in sorted(different)[:limit]]


def estimate(spec: AttentionSpec, config: KernelConfig, target: GpuTarget) -> Resources:
    """A guess at what a config's kernels need: tiles in shared memory, accumulators and scores in registers.

    What registers cannot hold is counted as spilled, which keeps such configs out of the first guesses.
    """
    passes = FAMILIES[config.family].passes(spec, config)
    registers = max(_registers(spec, shape, target) for shape in passes)
    limit = min(_MAX_REGISTERS, config.knobs().get("maxnreg") or _MAX_REGISTERS)
    return Resources(
        shared_bytes=sram_bound(spec, config, target),
        registers=min(registers, limit),
        spill_bytes=4 * max(0, registers - limit),
        num_warps=max(shape.num_warps for shape in passes),
    )


def _registers(spec: AttentionSpec, shape: PassShape, target: GpuTarget) -> int:
    """Accumulators and scores are fp32, and the probabilities of a 16-bit dtype take half as much again; the backward
    has the gradient of the scores besides, while it still needs P."""
    scores = shape.step + shape.step // 2 + (shape.step if spec.op == "backward" else 0)
    return _OTHER_REGISTERS + shape.kept * (shape.accumulator_columns + scores) // (shape.num_warps * target.warp_size)
