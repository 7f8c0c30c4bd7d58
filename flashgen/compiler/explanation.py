"""Where one candidate's bytes, registers and time go on a GPU that need not be there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from flashgen.compiler.crosscompile import compile_many
from flashgen.config import KernelConfig
from flashgen.families import FAMILIES, SharedTile
from flashgen.hardware.target import GpuTarget
from flashgen.outcome import Prediction, Reason, Rejected, Resources
from flashgen.resources.cost import StepCost, predict, step_cost
from flashgen.resources.occupancy import blocks_per_sm
from flashgen.resources.sram import exceeds, sram_bound, sram_terms
from flashgen.spec import AttentionSpec, Workload


@dataclass(frozen=True, kw_only=True, slots=True)
class Explanation:
    """The bound by named terms, what the compiler says, and for a kernel that fits the cost model's view of it.

    `steps` holds the SM cycles of one tile step of every pass, by its name, and is empty for a kernel that cannot run;
    `flops` and `hbm_bytes` are the workload's, whatever the config. Of several kernels the resources are the largest.
    """

    spec: AttentionSpec
    config: KernelConfig
    target: GpuTarget
    workload: Workload
    tiles: tuple[SharedTile, ...]
    bound_bytes: int
    compiled: Resources | Rejected
    blocks_per_sm: int | None
    steps: Mapping[str, StepCost]
    prediction: Prediction | None

    @property
    def flops(self) -> float:
        return self.workload.flops(self.spec)

    @property
    def hbm_bytes(self) -> float:
        return self.workload.min_bytes(self.spec)

    @property
    def hbm_floor_us(self) -> float:
        return self.hbm_bytes / self.target.hbm_bytes_per_s * 1e6

    @property
    def mma_floor_us(self) -> float:
        """At the dense 16-bit peak."""
        return self.flops / self.target.bf16_flops * 1e6

    @property
    def tflops(self) -> float | None:
        """Of the predicted time."""
        return None if self.prediction is None else self.flops / self.prediction.us * 1e-6

    @property
    def obstacle(self) -> str | None:
        """Why the config cannot run on the target, or None."""
        if isinstance(self.compiled, Rejected):
            return f"{self.compiled.reason}: {self.compiled.detail}"
        need, limit = self.compiled.shared_bytes, self.target.smem_per_block
        return f"sram: needs {need} bytes of shared memory, {self.target.slug} has {limit}" if need > limit else None


def explain(spec: AttentionSpec, config: KernelConfig, target: GpuTarget, workload: Workload) -> Explanation:
    """Compiles the candidate for `target`, unless it is certain not to run, and puts the arithmetic beside that."""
    compiled, passes = _compiled(spec, config, target), FAMILIES[config.family].passes(spec, config)
    known = compiled if isinstance(compiled, Resources) and compiled.shared_bytes <= target.smem_per_block else None
    return Explanation(
        spec=spec,
        config=config,
        target=target,
        workload=workload,
        tiles=sram_terms(spec, config, target),
        bound_bytes=sram_bound(spec, config, target),
        compiled=compiled,
        blocks_per_sm=None if known is None else blocks_per_sm(known, target),
        steps={} if known is None else {one.name: step_cost(spec, config, one, target, known) for one in passes},
        prediction=None if known is None else predict(spec, config, target, workload, known),
    )


def _compiled(spec: AttentionSpec, config: KernelConfig, target: GpuTarget) -> Resources | Rejected:
    """The compiler's answer, from a process of its own: a crash there is an answer as well."""
    family = FAMILIES[config.family]
    if why := family.unsupported(spec, target) or family.excluded(spec, config, target):
        return Rejected(reason=Reason.CONSTRAINT, detail=why)
    if (certain := exceeds(spec, config, target)) is not None:
        return certain
    ((_, answer),) = compile_many([(spec, config)], target, jobs=1)
    return answer
