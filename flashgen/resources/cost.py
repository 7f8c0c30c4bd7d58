"""The cost model: cycles of one tile step by named terms, and the kernel time they add up to.

It orders candidates where none can be timed, and proposes the first ones where they can. Its constants were fitted on
one GPU (resources/fit.py says how well), so its times are predictions and say so wherever they go. The fit is the
forward's, of family tl. The backward has its own count of matmuls and steps and the same constants, which were not
fitted to it; each pass is charged what the more demanding kernel needs, and the model does not see that passes are
merged, or that dP comes first.
"""

from __future__ import annotations

from dataclasses import dataclass

from flashgen.config import KernelConfig
from flashgen.families import FAMILIES, PassShape
from flashgen.hardware.target import GpuTarget
from flashgen.outcome import Prediction, Resources
from flashgen.resources.fit import H200, Fit
from flashgen.resources.occupancy import blocks_per_sm
from flashgen.spec import AttentionSpec, Workload

_EX2_PER_CLOCK = 16  # MUFU results a clock and SM (CUDA C++ Programming Guide, arithmetic throughput, 7.5 to 12.0)
_FP32_PER_CLOCK = 128  # fp32 results a clock and SM (the same table, 8.6 and later; 64 on 7.5 and 8.0)
_L2_BYTES_PER_CLOCK = 64  # an SM's read port to the L2
_WARPS_PER_GROUP = 4  # the warps of one tensor-core group
_BUFFERS_IN_USE = 2  # of the pipeline's: a matmul that runs still reads the one before
_MATMUL_RATE = {"fp32": 1 / 8, "fp8": 2}  # of a 16-bit dtype's
_FEATURE_OPERATIONS = {"alibi": 4, "bias": 2, "dropout": 11}  # a score, as templates/concern/ writes them


@dataclass(frozen=True, kw_only=True, slots=True)
class StepCost:
    """SM cycles of one step of one block, a tile of scores: each unit's if it had the SM to itself.

    `load` is what one block alone would wait for its loads.
    """

    mma: float
    softmax: float
    addresses: float
    load: float
    spill: float

    @property
    def vector(self) -> float:
        """Of the units that are not tensor cores."""
        return self.softmax + self.addresses

    @property
    def alone(self) -> float:
        """From the first load to the last result, with nothing beside it."""
        return self.mma + self.vector + self.load


def step_cost(
    spec: AttentionSpec,
    config: KernelConfig,
    shape: PassShape,
    target: GpuTarget,
    resources: Resources,
    fit: Fit = H200,
) -> StepCost:
    """The cost of a step of `shape`, one of the passes of `config`."""
    scores, is_forward = shape.kept * shape.step, spec.op == "forward"
    flops_per_clock = target.bf16_flops / (target.sm_count * target.clock_hz) * _MATMUL_RATE.get(spec.dtype, 1)
    mma = 2 * scores * shape.matmul_columns / flops_per_clock
    ex2 = scores * (2 if spec.softcap else 1) / _EX2_PER_CLOCK
    # The backward works on two tiles of scores, P and dS; it knows the maximum, so that nothing is rescaled.
    elementwise = fit.elementwise * (1 if is_forward else 2) * (2 if spec.softcap else 1)
    elementwise += sum(_FEATURE_OPERATIONS.get(feature, 0) for feature in spec.features)
    rescaled = shape.kept * shape.accumulator_columns if is_forward else 0
    loaded = shape.step * (spec.block_d + spec.block_dv) + (scores if spec.bias else 0)
    by_pointer = not (target.has_tma and config.knobs().get("tma", True))
    softmax = ex2 + (elementwise * scores + fit.rescale * rescaled) / _FP32_PER_CLOCK
    addresses = fit.address * loaded / _FP32_PER_CLOCK if by_pointer else 0.0
    arrival = loaded * spec.element_bytes / _L2_BYTES_PER_CLOCK
    arrival += fit.unpipelined if shape.num_stages == 1 else fit.latency
    hidden = max(0, shape.num_stages - _BUFFERS_IN_USE) * (mma + softmax + addresses)
    return StepCost(
        mma=mma,
        softmax=softmax,
        addresses=addresses,
        load=max(0.0, arrival - hidden),
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
    """Kernel time in microseconds, and what bounds it: of several passes their sum, and the longest's bound.

    A pass is bound by `mma`, by `softmax`, or by `latency` where an SM holds too few blocks to fill the waits of one.
    """
    knobs = config.knobs()
    factor = fit.short_first if spec.causal and not knobs.get("longest_first", True) else 1.0
    factor *= fit.capped if knobs.get("maxnreg") else 1.0
    resident = max(1, blocks_per_sm(resources, target))
    passes: list[tuple[float, str]] = []
    for shape in FAMILIES[config.family].passes(spec, config):
        cost = step_cost(spec, config, shape, target, resources, fit)
        groups = max(1.0, shape.num_warps / _WARPS_PER_GROUP)
        waits = cost.alone / (resident * (1 + fit.group * (groups - 1)))
        units = {"mma": cost.mma, "softmax": cost.vector, "latency": waits}
        cycles = sum(each**fit.overlap for each in units.values()) ** (1 / fit.overlap) + cost.spill
        busy = min(target.sm_count, programs(shape, workload))
        us = factor * cycles * steps(spec, shape, workload) / busy / target.clock_hz * 1e6
        passes.append((us, max(units, key=units.__getitem__)))
    chip_us = sum(us for us, _ in passes)
    hbm_us = workload.min_bytes(spec) / target.hbm_bytes_per_s * 1e6
    if hbm_us > chip_us:
        return Prediction(us=hbm_us, bound="hbm")
    return Prediction(us=chip_us, bound=max(passes)[1])
