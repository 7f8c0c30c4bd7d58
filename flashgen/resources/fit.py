"""What the cost model takes from measurements: its constants, and how far it was off where it had not been fitted.

python benchmarks/fit_cost_model.py     prints the constants
python benchmarks/check_cost_model.py   writes benchmarks/cost-model.json, whose `worst` is HELD_OUT
"""

from __future__ import annotations

from dataclasses import dataclass

from flashgen.spec import Op


@dataclass(frozen=True, kw_only=True, slots=True)
class Fit:
    """Fitted to forward kernels of family tl on an H200, in bf16 with head dims 64, 128 and 256 (benchmarks/data/)."""

    elementwise: float = 5.3  # fp32 operations a score: maximum, subtract, scale, add, convert, mask
    rescale: float = 4.8  # fp32 operations an accumulator element and step
    address: float = 1.0  # fp32 operations an element that is loaded through a pointer
    latency: float = 220.0  # cycles until a load has arrived that the pipeline issued
    unpipelined: float = 2300.0  # cycles until K, and after it V, have arrived where there is no pipeline
    group: float = 0.32  # what a further group of warps of the same block hides, in blocks: they wait for each other
    spill: float = 3.4  # cycles a spilled byte and step
    overlap: float = 2.2  # the exponent by which times that overlap add up: 1 would be one after the other
    # Not fitted, as no table has such configs. Of the order of tiles only the direction is known, and what a cap on
    # registers costs is not: with this, it must promise a lot.
    short_first: float = 1.02  # of a causal call whose longest tiles do not start first
    capped: float = 1.1  # of a config with maxnreg


H200 = Fit()


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldOut:
    """How well the model orders configs of `specs` specs of `op` measured on `gpu`, each held out of the fit once.

    Rank correlation is Spearman's. Regret is the time of the model's first pick, or of the best of its first five, over
    that of the best config, less one. Each of these is the worst of all held-out specs. `error` is what a prediction is
    typically wrong by: the root mean square of the log of predicted over measured time, of all held-out configs.
    """

    gpu: str
    op: Op
    specs: int
    rank_correlation: float
    first_regret: float
    top5_regret: float
    error: float

    def __str__(self) -> str:
        return (
            f"predicted: on {self.specs} {self.op} specs of family tl on {self.gpu}, each held out of the cost model's "
            f"fit, its first pick was up to {self.first_regret:.1%} slower than the best, and the best of its first "
            f"five up to {self.top5_regret:.1%}"
        )


HELD_OUT = HeldOut(
    gpu="nvidia-h200",
    op="forward",
    specs=6,
    rank_correlation=0.663,
    first_regret=0.2742,
    top5_regret=0.0,
    error=0.1403,
)
