"""GpuTarget: the facts about a GPU that the rest of flashgen reasons with."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuTarget:
    """One GPU model.

    `slug` names it in paths (`nvidia-h200`); `arch` is the compiler's (`sm_90`, `gfx942`). `smem_per_block` is the
    opt-in limit of one block (CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN), `smem_per_sm` what the blocks
    of one SM share; both in bytes. `registers_per_sm` counts 32-bit registers. Rates are the vendor's dense ones.
    """

    slug: str
    arch: str
    sm_count: int
    smem_per_block: int
    smem_per_sm: int
    registers_per_sm: int
    l2_bytes: int
    hbm_bytes_per_s: float
    bf16_flops: float  # dense bf16 with fp32 accumulation, FLOP/s; fp16's where the GPU has no bf16
    clock_hz: float  # boost
    has_bf16: bool = True

    @property
    def is_nvidia(self) -> bool:
        return self.arch.startswith("sm_")

    @property
    def capability(self) -> int:
        """CUDA compute capability as one number, such as 90; 0 on other vendors."""
        return int(self.arch.removeprefix("sm_")) if self.is_nvidia else 0

    @property
    def warp_size(self) -> int:
        """Threads a warp: AMD's CDNA (gfx9) is wave64, RDNA and NVIDIA 32."""
        return 64 if self.arch.startswith("gfx9") else 32

    @property
    def has_tma(self) -> bool:
        return self.capability >= 90
