"""Family `tl`: portable Triton. Pointer loads anywhere; TMA tensor descriptors on sm_90 and later."""

from __future__ import annotations

from dataclasses import dataclass

from flashgen.config import KernelConfig, Knob
from flashgen.errors import SpecError
from flashgen.families.base import Family, PassShape, SharedTile
from flashgen.hardware.target import GpuTarget
from flashgen.spec import AttentionSpec

_BLOCKS = (16, 32, 64, 128, 256)
_MAX_THREADS = 1024
_MIN_CAPABILITY = 80  # below it triton lowers tl.dot to scalar FMAs: minutes in ptxas, and no tensor cores
_MAX_ACCUMULATOR_REGISTERS = 224  # of the 255 that a thread can have; the rest holds P, addresses and row statistics


@dataclass(frozen=True, kw_only=True, slots=True)
class TlConfig(KernelConfig):
    """Knobs of `tl` beyond the common ones.

    tma             load Q, K and V and store the output through TMA tensor descriptors (sm_90+)
    programs_per_sm 0 launches one program a tile; n launches n programs an SM, each looping over tiles (persistent)
    longest_first   start the tiles with most keys first (causal and window)
    heads_per_group heads whose tiles run interleaved, so that their K and V share the L2; 1 runs head by head
    maxnreg         cap on registers a thread, or None
    """

    family: str = "tl"
    tma: bool = False
    programs_per_sm: int = 0
    longest_first: bool = False
    heads_per_group: int = 1
    maxnreg: int | None = None

    def __post_init__(self) -> None:
        self.require_positive("BLOCK_M", "BLOCK_N", "num_warps", "num_stages", "heads_per_group")
        self.require_one_of({"BLOCK_M": _BLOCKS, "BLOCK_N": _BLOCKS})
        if self.num_warps not in (1, 2, 4, 8, 16):
            raise SpecError(f"num_warps {self.num_warps} is not a power of two from 1 to 16")
        if isinstance(self.programs_per_sm, bool) or self.programs_per_sm not in (0, 1, 2, 3, 4):
            raise SpecError(f"programs_per_sm {self.programs_per_sm!r} is not an integer from 0 to 4")
        self.require_flags("tma", "longest_first")
        if self.maxnreg is not None and (isinstance(self.maxnreg, bool) or self.maxnreg not in range(24, 256, 8)):
            raise SpecError(f"maxnreg {self.maxnreg!r} is neither null nor a multiple of 8 from 24 to 248")

    @property
    def persistent(self) -> bool:
        return self.programs_per_sm > 0


class TlFamily(Family):
    name = "tl"
    op = "forward"
    config_type = TlConfig

    def unsupported(self, spec: AttentionSpec, target: GpuTarget) -> str | None:
        if target.is_nvidia and target.capability < _MIN_CAPABILITY:
            return f"{target.slug} is {target.arch}; triton has tensor-core code from sm_{_MIN_CAPABILITY} on"
        if spec.dtype == "bf16" and not target.has_bf16:
            return f"{target.slug} has no bf16 matrix unit; use fp16"
        if spec.is_fp8:
            return "fp8 is written in Gluon alone, for sm_90, and tuned where that GPU is"
        return None

    def choices(self, spec: AttentionSpec, target: GpuTarget) -> dict[str, tuple[Knob, ...]]:
        wide = max(spec.block_d, spec.block_dv) > 128
        block_m: tuple[int, ...] = (64, 128, 256)
        block_n: tuple[int, ...] = (32, 64, 128)
        stages: tuple[int, ...] = (1, 2, 3, 4)
        if wide:
            block_m, block_n = (32, 64, 128), (16, 32, 64, 128)
        if spec.is_fp32:  # scalar FMAs keep whole rows of tiles in registers
            block_m, block_n, stages = (16, 32, 64), (16, 32), (1, 2)
        masked = spec.causal or spec.window
        return {
            "BLOCK_M": block_m,
            "BLOCK_N": block_n,
            "num_warps": (4, 8) if target.is_nvidia else (2, 4, 8),
            "num_stages": stages,
            "tma": (True, False) if target.has_tma else (False,),
            "programs_per_sm": (0, 1, 2),
            "longest_first": (True, False) if masked else (False,),
            "heads_per_group": (1, 8),
            "maxnreg": (None, 128) if target.is_nvidia else (None,),
        }

    def excluded(self, spec: AttentionSpec, config: KernelConfig, target: GpuTarget) -> str | None:
        assert isinstance(config, TlConfig)
        if config.tma and not target.has_tma:
            return f"tma needs sm_90 or later; {target.slug} is {target.arch}"
        threads = config.num_warps * target.warp_size
        if threads > _MAX_THREADS:
            return f"{config.num_warps} warps are {threads} threads; a block has at most {_MAX_THREADS}"
        least = 16 if 90 <= target.capability < 100 else 8  # wgmma gives a warp 16 rows, mma can split columns too
        if not spec.is_fp32 and config.BLOCK_M // config.num_warps < least:
            return f"{config.num_warps} warps share BLOCK_M {config.BLOCK_M}: under {least} rows each"
        if (per_thread := config.BLOCK_M * (spec.block_dv + config.BLOCK_N) // threads) > _MAX_ACCUMULATOR_REGISTERS:
            return (
                f"accumulator and scores take {per_thread} registers a thread; over {_MAX_ACCUMULATOR_REGISTERS} spill"
            )
        if config.maxnreg and target.registers_per_sm < config.maxnreg * config.num_warps * target.warp_size:
            return f"maxnreg {config.maxnreg} with {config.num_warps} warps is more than an SM's registers"
        return None

    def shared_tiles(self, spec: AttentionSpec, config: KernelConfig, target: GpuTarget) -> tuple[SharedTile, ...]:
        # wgmma reads its operands from shared memory, and the pipeliner keeps num_stages of them; mma reads registers,
        # so the pipeliner of older archs keeps one stage fewer. Unpipelined, K and V take turns in one buffer.
        size = spec.element_bytes
        wgmma = 90 <= target.capability < 100 and not spec.is_fp32 and config.BLOCK_M >= 64 and config.num_warps >= 4
        stages = config.num_stages if wgmma else config.num_stages - 1
        k = SharedTile(name="K", rows=config.BLOCK_N, columns=spec.block_d, element_bytes=size, copies=stages)
        v = SharedTile(name="V", rows=config.BLOCK_N, columns=spec.block_dv, element_bytes=size, copies=stages)
        if config.num_stages == 1:
            return (max(k, v, key=lambda tile: tile.columns),) if wgmma else ()
        q = SharedTile(name="Q", rows=config.BLOCK_M, columns=spec.block_d, element_bytes=size)
        return (q, k, v) if wgmma else (k, v)

    def passes(self, spec: AttentionSpec, config: KernelConfig) -> tuple[PassShape, ...]:
        return (
            PassShape(
                name="forward",
                kept=config.BLOCK_M,
                step=config.BLOCK_N,
                keeps_keys=False,
                num_warps=config.num_warps,
                num_stages=config.num_stages,
                matmul_columns=spec.block_d + spec.block_dv,
                accumulator_columns=spec.block_dv,
            ),
        )

    def kernel_templates(self, spec: AttentionSpec, config: KernelConfig) -> dict[str, str]:
        return {"fwd": "kernel/forward_tl.py.jinja"}

    def structure(self, spec: AttentionSpec, config: KernelConfig) -> str:
        assert isinstance(config, TlConfig)
        parts = {
            "padded": spec.pads_head_dim and not config.tma,
            "tma": config.tma,
            "persistent": config.persistent,
            "longest": config.longest_first,
        }
        return "_".join(name for name, present in parts.items() if present)

    def likely_good(self, spec: AttentionSpec, target: GpuTarget) -> tuple[KernelConfig, ...]:
        if spec.is_fp32:
            rows = [(32, 32, 4, 1), (32, 16, 4, 1), (16, 16, 4, 1)]
            return tuple(TlConfig(BLOCK_M=m, BLOCK_N=n, num_warps=w, num_stages=s) for m, n, w, s in rows)
        small_sram = target.smem_per_block < 128 * 1024
        d = max(spec.block_d, spec.block_dv)
        tma, masked = target.has_tma, spec.causal or spec.window
        tiles = {
            64: [(64, 128, 4, 2), (64, 64, 4, 3), (128, 64, 8, 3), (128, 64, 4, 3)],
            128: [(64, 64, 4, 3), (128, 128, 8, 3), (128, 64, 8, 3), (128, 64, 8, 2)],
            256: [(128, 64, 8, 2), (64, 64, 4, 3), (64, 32, 4, 2), (128, 32, 8, 2)],
        }
        if small_sram:
            tiles |= {128: [(128, 32, 8, 2), (64, 64, 4, 2)], 256: [(64, 32, 4, 2), (32, 32, 4, 1)]}
        rows = tiles[min(256, max(64, d))]
        return tuple(
            TlConfig(BLOCK_M=m, BLOCK_N=n, num_warps=w, num_stages=s, tma=tma, longest_first=masked)
            for m, n, w, s in rows
        )


TL = TlFamily()
