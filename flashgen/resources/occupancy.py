"""How many blocks of a kernel one SM holds at once."""

from __future__ import annotations

from flashgen.hardware.target import GpuTarget
from flashgen.outcome import Resources

RESERVED_SHARED_BYTES = 1024  # the driver's own, a block (CUDA C++ Programming Guide, compute capability 8.0 and later)
_REGISTER_UNIT = 256  # registers are given to warps in units of 256 (the same guide, technical specifications)
_MAX_WARPS = {75: 32, 86: 48, 89: 48, 120: 48}  # an SM's resident warps; 64 on the other architectures


def blocks_per_sm(resources: Resources, target: GpuTarget) -> int:
    """Resident blocks an SM, limited by shared memory, registers and warps; 0 if not even one fits."""
    reserved = RESERVED_SHARED_BYTES if target.is_nvidia and target.capability >= 80 else 0
    by_shared = target.smem_per_sm // max(resources.shared_bytes + reserved, 1)
    per_warp = -(-max(resources.registers, 1) * target.warp_size // _REGISTER_UNIT) * _REGISTER_UNIT
    by_registers = target.registers_per_sm // (per_warp * resources.num_warps)
    by_warps = _MAX_WARPS.get(target.capability, 64) // resources.num_warps
    return min(by_shared, by_registers, by_warps)
