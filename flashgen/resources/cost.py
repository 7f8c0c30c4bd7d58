"""The cost model: cycles of one tile step by named terms, and the kernel time they add up to.

It orders candidates where none can be timed, and proposes the first ones where they can. Its constants were fitted on
one GPU (benchmarks/fit_cost_model.py on benchmarks/data/), so its times are predictions and say so wherever they go.
The fit is the forward's. The backward has its own count of matmuls and steps and the same constants, which were not
fitted to it; each pass is charged what the more demanding kernel needs, and the model does not see that passes are
merged, or that dP comes first.
"""

from __future__ import annotations

from dataclasses import dataclass

from flashgen.config import KernelConfig
from flashgen.families import FAMILIES, PassShape
from flashgen.hardware.target import GpuTarget
from flashgen.outcome import Prediction, Resources
from flashgen.resources.occupancy import blocks_per_sm
from flashgen.spec import AttentionSpec, Workload

_EX2_PER_CLOCK = 16  # MUFU results a clock and SM (CUDA C++ Programming Guide, arithmetic throughput, 7.5 to 12.0)
_FP32_PER_CLOCK = 128  # fp32 results a clock and SM (the same table, 8.6 and later; 64 on 7.5 and 8.0)
_L2_BYTES_PER_CLOCK = 64  # an SM's read port to the L2
_WARPS_PER_GROUP = 4  # the warps of one tensor-core group; groups overlap each other's softmax and matmuls
_FEATURE_OPERATIONS = {"alibi": 4, "bias": 2, "dropout": 11}  # a score, as templates/concern/ writes them


@dataclass(frozen=True, kw_only=True, slots=True)
class Fit:
    """What the terms are multiplied by."""

    mma: float = 1.69  # over the dense peak
    ex2: float = 0.78
    elementwise: float = 7.6  # fp32 operations a score: maximum, subtract, scale, add, convert, mask
    rescale: float = 5.0  # fp32 operations an accumulator element and step
    load: float = 0.075  # share of a tile's L2 time that a deep pipeline leaves exposed; twice that with 2 stages
    spill: float = 4.8  # cycles a spilled byte and step
    # Not fitted: what decides between configs that the terms above cannot tell apart. In benchmarks/data/ the best
    # causal config takes 584.5 us with TMA and 623.6 with pointers; of the order of tiles only the direction is known.
    pointers: float = 1.06  # of a step on a GPU with TMA whose config does not use it
    short_first: float = 1.02  # of a causal call whose longest tiles do not start first


H200 = Fit()


@dataclass(frozen=True, kw_only=True, slots=True)
class StepCost:
    """SM cycles of one step of one block: a tile of scores."""

    mma: float
    softmax: float
    load: float
    spill: float

    @property
    def bound(self) -> str:
        return "mma" if self.mma >= self.softmax else "softmax"


def step_cost(
    spec: AttentionSpec, shape: PassShape, target: GpuTarget, resources: Resources, fit: Fit = H200
) -> StepCost:
    """Each unit's cycles if it had the SM to itself, in one pass of a config."""
    scores, is_forward = shape.kept * shape.step, spec.op == "forward"
    flops_per_clock = target.bf16_flops / (target.sm_count * target.clock_hz) / (8 if spec.is_fp32 else 1)
    mma = 2 * scores * shape.matmul_columns / flops_per_clock
    ex2 = scores * (2 if spec.softcap else 1) / _EX2_PER_CLOCK
    # The backward works on two tiles of scores, P and dS; it knows the maximum, so that nothing is rescaled.
    elementwise = fit.elementwise * (1 if is_forward else 2) * (2 if spec.softcap else 1)
    elementwise += sum(_FEATURE_OPERATIONS.get(feature, 0) for feature in spec.features)
    rescaled = shape.kept * shape.accumulator_columns if is_forward else 0
    elements = shape.step * (spec.block_d + spec.block_dv) + (scores if spec.bias else 0)
    load = elements * spec.element_bytes / _L2_BYTES_PER_CLOCK
    return StepCost(
        mma=fit.mma * mma,
        softmax=fit.ex2 * ex2 + (elementwise * scores + fit.rescale * rescaled) / _FP32_PER_CLOCK,
        load=load * {1: 1.0, 2: 2 * fit.load}.get(shape.num_stages, fit.load),  # with one stage nothing hides it
        spill=fit.spill * resources.spill_bytes,
    )


def programs(shape: PassShape, workload: Workload) -> int:
    """Tiles that a pass keeps, one a program."""
    heads, rows = (workload.heads_kv, workload.seqlen_k) if shape.keeps_keys else (workload.heads_q, workload.seqlen_q)
    return workload.batch * heads * -(-rows // shape.kept)


def steps(spec: AttentionSpec, shape: PassShape, workload: Workload) -> float:
    """Tile steps of all programs of a pass; causal ones go to the diagonal, or from it on."""
    group, rows = 1, float(workload.seqlen_k)
    if shape.keeps_keys:  # a program steps over the queries of every head that shares its keys
        group, rows = workload.heads_q // workload.heads_kv, float(workload.seqlen_q)
    if spec.causal:
        rows = min(rows, rows / 2 + shape.kept / 2)
    return programs(shape, workload) * group * -(-rows // shape.step)


def predict(
    spec: AttentionSpec,
    config: KernelConfig,
    target: GpuTarget,
    workload: Workload,
    resources: Resources,
    fit: Fit = H200,
) -> Prediction:
    """Kernel time in microseconds, and the term that bounds it: of several passes their sum, and the longest's term."""
    knobs, factor = config.knobs(), 1.0
    factor *= fit.pointers if target.has_tma and not knobs.get("tma") else 1.0
    factor *= fit.short_first if spec.causal and not knobs.get("longest_first", True) else 1.0
    resident = max(1, blocks_per_sm(resources, target))
    passes: list[tuple[float, str]] = []
    for shape in FAMILIES[config.family].passes(spec, config):
        cost = step_cost(spec, shape, target, resources, fit)
        groups = max(1.0, resident * shape.num_warps / _WARPS_PER_GROUP)
        long, short = max(cost.mma, cost.softmax), min(cost.mma, cost.softmax)
        cycles = factor * (long + (short + cost.load) / groups + cost.spill)
        busy = min(target.sm_count, programs(shape, workload))
        passes.append((cycles * steps(spec, shape, workload) / busy / target.clock_hz * 1e6, cost.bound))
    chip_us = sum(us for us, _ in passes)
    hbm_us = workload.min_bytes(spec) / target.hbm_bytes_per_s * 1e6
    if hbm_us > chip_us:
        return Prediction(us=hbm_us, bound="hbm")
    return Prediction(us=chip_us, bound=max(passes)[1])
