"""The cost model: cycles of one tile step by named terms, and the kernel time they add up to.

It orders candidates where none can be timed, and proposes the first ones where they can. Its constants were fitted on
one GPU (benchmarks/fit_cost_model.py on benchmarks/data/), so its times are predictions and say so wherever they go.
"""

from __future__ import annotations

from dataclasses import dataclass

from flashgen.config import KernelConfig
from flashgen.hardware.target import GpuTarget
from flashgen.outcome import Prediction, Resources
from flashgen.resources.occupancy import blocks_per_sm
from flashgen.spec import AttentionSpec, Workload

_EX2_PER_CLOCK = 16  # MUFU results a clock and SM (CUDA C++ Programming Guide, arithmetic throughput, 7.5 to 12.0)
_FP32_PER_CLOCK = 128  # fp32 results a clock and SM (the same table, 8.6 and later; 64 on 7.5 and 8.0)
_L2_BYTES_PER_CLOCK = 64  # an SM's read port to the L2
_WARPS_PER_GROUP = 4  # the warps of one tensor-core group; groups overlap each other's softmax and matmuls


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
    """SM cycles of one BLOCK_M x BLOCK_N step of one block."""

    mma: float
    softmax: float
    load: float
    spill: float


def step_cost(
    spec: AttentionSpec, config: KernelConfig, target: GpuTarget, resources: Resources, fit: Fit = H200
) -> StepCost:
    """Each unit's cycles if it had the SM to itself."""
    scores = config.BLOCK_M * config.BLOCK_N
    flops_per_clock = target.bf16_flops / (target.sm_count * target.clock_hz) / (8 if spec.is_fp32 else 1)
    mma = 2 * scores * (spec.block_d + spec.block_dv) / flops_per_clock
    ex2 = scores * (2 if spec.softcap else 1) / _EX2_PER_CLOCK
    elementwise = scores * (2 if spec.softcap else 1) / _FP32_PER_CLOCK
    rescale = config.BLOCK_M * spec.block_dv / _FP32_PER_CLOCK
    load = config.BLOCK_N * (spec.block_d + spec.block_dv) * spec.element_bytes / _L2_BYTES_PER_CLOCK
    return StepCost(
        mma=fit.mma * mma,
        softmax=fit.ex2 * ex2 + fit.elementwise * elementwise + fit.rescale * rescale,
        load=load * {1: 1.0, 2: 2 * fit.load}.get(config.num_stages, fit.load),  # with one stage nothing hides it
        spill=fit.spill * resources.spill_bytes,
    )


def steps(spec: AttentionSpec, config: KernelConfig, workload: Workload) -> float:
    """Tile steps of the whole call; causal tiles end at the diagonal."""
    tiles = workload.batch * workload.heads_q * -(-workload.seqlen_q // config.BLOCK_M)
    keys = float(workload.seqlen_k)
    if spec.causal:
        keys = min(keys, keys / 2 + config.BLOCK_M / 2)
    return tiles * -(-keys // config.BLOCK_N)


def predict(
    spec: AttentionSpec,
    config: KernelConfig,
    target: GpuTarget,
    workload: Workload,
    resources: Resources,
    fit: Fit = H200,
) -> Prediction:
    """Kernel time in microseconds, and the term that bounds it."""
    resident = max(1, blocks_per_sm(resources, target))
    cost = step_cost(spec, config, target, resources, fit)
    groups = max(1.0, resident * config.num_warps / _WARPS_PER_GROUP)
    long, short = max(cost.mma, cost.softmax), min(cost.mma, cost.softmax)
    knobs = config.knobs()
    cycles = long + (short + cost.load) / groups + cost.spill
    cycles *= fit.pointers if target.has_tma and not knobs.get("tma") else 1.0
    cycles *= fit.short_first if spec.causal and not knobs.get("longest_first") else 1.0
    busy = min(target.sm_count, workload.batch * workload.heads_q * -(-workload.seqlen_q // config.BLOCK_M))
    chip_us = cycles * steps(spec, config, workload) / busy / target.clock_hz * 1e6
    hbm_us = workload.min_bytes(spec) / target.hbm_bytes_per_s * 1e6
    if hbm_us > chip_us:
        return Prediction(us=hbm_us, bound="hbm")
    return Prediction(us=chip_us, bound="mma" if cost.mma >= cost.softmax else "softmax")
