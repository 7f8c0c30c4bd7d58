"""What a compiled kernel may need of a GPU: its shared memory, and few registers spilled."""

from __future__ import annotations

from flashgen.hardware.target import GpuTarget
from flashgen.outcome import Reason, Rejected, Resources

# Bytes a thread: a few registers saved around a loop cost little, and the clock sees it; more land inside the loop.
MAX_SPILL_BYTES = 128


def over_limit(resources: Resources, target: GpuTarget) -> Rejected | None:
    """Why a kernel that compiled cannot or should not run on `target`, or None."""
    need, limit = resources.shared_bytes, target.smem_per_block
    if need > limit:
        return Rejected(reason=Reason.SRAM, detail=f"needs {need} bytes of shared memory, {target.slug} has {limit}")
    if resources.spill_bytes > MAX_SPILL_BYTES:
        spills = f"spills {resources.spill_bytes} bytes a thread at {resources.registers} registers"
        return Rejected(reason=Reason.SPILLS, detail=f"{spills}, limit {MAX_SPILL_BYTES}")
    return None
