"""How fast a detected GPU can be: the known model's rates, scaled down to it, or an estimate on the low side."""

from __future__ import annotations

from dataclasses import dataclass

from flashgen.hardware.known import KNOWN, KnownGpu
from flashgen.hardware.target import GpuTarget


@dataclass(frozen=True, kw_only=True, slots=True)
class Reported:
    """What the driver says about a device; None where this torch or this driver doesn't."""

    arch: str
    sm_count: int
    l2_bytes: int
    clock_hz: float | None = None
    hbm_bytes_per_s: float | None = None
    is_slice: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Rates:
    """Rates of a device (units as in GpuTarget), and the names of those that are estimates."""

    bf16_flops: float
    hbm_bytes_per_s: float
    clock_hz: float
    estimated: tuple[str, ...] = ()


def known_rates(known: KnownGpu, device: Reported) -> Rates:
    """The model's rates, never above the table: fewer SMs, a lower clock or slower memory scale them down."""
    table = known.target
    clock = min(table.clock_hz, device.clock_hz or table.clock_hz)
    sm_share = min(1.0, device.sm_count / table.sm_count)
    hbm = min(table.hbm_bytes_per_s, device.hbm_bytes_per_s or table.hbm_bytes_per_s)
    if device.is_slice:
        # A MIG memory slice is L2 banks together with the memory controllers behind them.
        hbm *= min(1.0, device.l2_bytes / table.l2_bytes)
    return Rates(
        bf16_flops=table.bf16_flops * sm_share * clock / table.clock_hz,
        hbm_bytes_per_s=hbm,
        clock_hz=clock,
    )


def estimated_rates(device: Reported) -> Rates:
    """Rates of a model that isn't known: per SM, the slowest of its kin."""
    kin = _kin(device.arch)
    clock = device.clock_hz or min(gpu.clock_hz for gpu in kin)
    flops_per_sm_clock = min(gpu.bf16_flops / (gpu.sm_count * gpu.clock_hz) for gpu in kin)
    hbm_per_sm = min(gpu.hbm_bytes_per_s / gpu.sm_count for gpu in kin)
    estimated = ["bf16_flops"]
    estimated += [] if device.hbm_bytes_per_s else ["hbm_bytes_per_s"]
    estimated += [] if device.clock_hz else ["clock_hz"]
    return Rates(
        bf16_flops=flops_per_sm_clock * device.sm_count * clock,
        hbm_bytes_per_s=device.hbm_bytes_per_s or hbm_per_sm * device.sm_count,
        clock_hz=clock,
        estimated=tuple(estimated),
    )


def _kin(arch: str) -> list[GpuTarget]:
    """Known GPUs to estimate from: the newest NVIDIA architecture that isn't newer than `arch`, or else all of them."""
    targets = [gpu.target for gpu in KNOWN.values()]
    if not arch.startswith("sm_"):
        return [target for target in targets if target.arch == arch] or targets
    capability = int(arch.removeprefix("sm_"))
    older = [target.capability for target in targets if 0 < target.capability <= capability]
    return [target for target in targets if older and target.capability == max(older)] or targets
