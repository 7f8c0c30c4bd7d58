"""Shared memory as named terms. A lower bound: it orders and cuts the search, and never rejects a config that fits.

What the kernel really takes only the compiler knows: layouts, padding and barriers differ by architecture.
"""

from __future__ import annotations

from flashgen.config import KernelConfig
from flashgen.families import FAMILIES, SharedTile
from flashgen.hardware.target import GpuTarget
from flashgen.outcome import Reason, Rejected
from flashgen.spec import AttentionSpec


def sram_terms(spec: AttentionSpec, config: KernelConfig, target: GpuTarget) -> tuple[SharedTile, ...]:
    """The tiles that must sit in shared memory at once."""
    return FAMILIES[config.family].shared_tiles(spec, config, target)


def sram_bound(spec: AttentionSpec, config: KernelConfig, target: GpuTarget) -> int:
    """Bytes a block needs at least."""
    return sum(tile.total_bytes for tile in sram_terms(spec, config, target))


def exceeds(spec: AttentionSpec, config: KernelConfig, target: GpuTarget) -> Rejected | None:
    """The rejection of a config whose bound is over the target's limit, with the terms; else None."""
    need = sram_bound(spec, config, target)
    if need <= target.smem_per_block:
        return None
    terms = " + ".join(f"{tile.name} {tile.total_bytes}" for tile in sram_terms(spec, config, target))
    detail = f"needs at least {need} bytes of shared memory ({terms}); {target.slug} offers {target.smem_per_block}"
    return Rejected(reason=Reason.SRAM, detail=detail)
