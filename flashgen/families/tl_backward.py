"""Family `tl_backward`: the backward pass in portable Triton, as a pass for dK and dV and a pass for dQ.

Both recompute P from Q, K and the lse (arXiv 2205.14135, algorithm 4). That makes 7 matmuls a tile where one pass that
adds to dQ by atomics needs 5, but the same bits in every run; on Hopper the atomics cost more than the two matmuls.
"""

from __future__ import annotations

from dataclasses import dataclass

from flashgen.config import KernelConfig, Knob
from flashgen.errors import SpecError
from flashgen.families.base import Family, PassShape, SharedTile
from flashgen.families.tl import TL
from flashgen.hardware.target import GpuTarget
from flashgen.spec import AttentionSpec

Tiling = tuple[int, int, int, int]

_BLOCKS = (16, 32, 64, 128)
_MAX_ACCUMULATOR_REGISTERS = 224  # of the 255 that a thread can have; the rest holds operands and row statistics


@dataclass(frozen=True, kw_only=True, slots=True)
class TlBackwardConfig(KernelConfig):
    """Knobs of `tl_backward`. The common ones are those of dK and dV, whose programs keep BLOCK_N keys and step over
    BLOCK_M queries.

    BLOCK_M_DQ, BLOCK_N_DQ   a program of dQ keeps BLOCK_M_DQ queries and steps over BLOCK_N_DQ keys
    num_warps_dq, num_stages_dq   launch options of the dQ pass
    dp_first        of dK and dV: dO V^T is issued beside Q K^T, for more overlap and more registers, not after dV
    merged          one launch for both passes, so that a head's tiles share the L2 (needs tma, equal warps and stages)
    tma             load and store tiles through TMA tensor descriptors (sm_90+)
    """

    family: str = "tl_backward"
    BLOCK_M_DQ: int
    BLOCK_N_DQ: int
    num_warps_dq: int
    num_stages_dq: int
    dp_first: bool = False
    merged: bool = False
    tma: bool = False

    def __post_init__(self) -> None:
        flags = ("dp_first", "merged", "tma")
        self.require_positive(*(name for name in self.knobs() if name not in flags))
        self.require_flags(*flags)
        self.require_one_of(dict.fromkeys(("BLOCK_M", "BLOCK_N", "BLOCK_M_DQ", "BLOCK_N_DQ"), _BLOCKS))
        for name in ("num_warps", "num_warps_dq"):
            if getattr(self, name) not in (1, 2, 4, 8, 16):
                raise SpecError(f"{name} {getattr(self, name)} is not a power of two from 1 to 16")

    @classmethod
    def of_passes(cls, dkdv: Tiling, dq: Tiling, **knobs: bool) -> TlBackwardConfig:
        """The config whose passes are (BLOCK_M, BLOCK_N, num_warps, num_stages) each."""
        names = ("BLOCK_M", "BLOCK_N", "num_warps", "num_stages")
        dq_names = ("BLOCK_M_DQ", "BLOCK_N_DQ", "num_warps_dq", "num_stages_dq")
        return cls(**dict(zip(names, dkdv)), **dict(zip(dq_names, dq)), **knobs)  # type: ignore[arg-type]

    @property
    def as_dq(self) -> Tiling:
        """(BLOCK_M, BLOCK_N, num_warps, num_stages) of the dQ pass."""
        return self.BLOCK_M_DQ, self.BLOCK_N_DQ, self.num_warps_dq, self.num_stages_dq


class TlBackwardFamily(Family):
    name = "tl_backward"
    op = "backward"
    config_type = TlBackwardConfig

    def unsupported(self, spec: AttentionSpec, target: GpuTarget) -> str | None:
        return TL.unsupported(spec, target)

    def choices(self, spec: AttentionSpec, target: GpuTarget) -> dict[str, tuple[Knob, ...]]:
        wide = max(spec.block_d, spec.block_dv) > 128
        step: tuple[int, ...] = (32, 64, 128)
        kept: tuple[int, ...] = (64, 128)
        stages: tuple[int, ...] = (1, 2, 3)
        if wide:
            step, kept = (16, 32, 64), (32, 64, 128)
        if spec.is_fp32:  # scalar FMAs keep whole rows of tiles in registers
            step, kept, stages = (16, 32), (16, 32), (1, 2)
        return {
            "BLOCK_M": step,
            "BLOCK_N": kept,
            "num_warps": (4, 8),
            "num_stages": stages,
            "BLOCK_M_DQ": kept,
            "BLOCK_N_DQ": step,
            "num_warps_dq": (4, 8),
            "num_stages_dq": stages,
            "dp_first": (False, True),
            "merged": (True, False) if target.has_tma else (False,),
            "tma": (True, False) if target.has_tma else (False,),
        }

    def excluded(self, spec: AttentionSpec, config: KernelConfig, target: GpuTarget) -> str | None:
        assert isinstance(config, TlBackwardConfig)
        if config.tma and not target.has_tma:
            return f"tma needs sm_90 or later; {target.slug} is {target.arch}"
        if config.merged and not config.tma:
            return "merged passes take tensor descriptors: merged needs tma"
        if config.merged and (config.num_warps, config.num_stages) != (config.num_warps_dq, config.num_stages_dq):
            return "one launch has one num_warps and num_stages: merged needs equal ones in both passes"
        for shape in self.passes(spec, config):
            if (why := _too_large(spec, shape, target)) is not None:
                return f"{shape.name}: {why}"
        return None

    def passes(self, spec: AttentionSpec, config: KernelConfig) -> tuple[PassShape, ...]:
        assert isinstance(config, TlBackwardConfig)
        both = spec.block_d + spec.block_dv
        return (
            PassShape(
                name="dK, dV",
                kept=config.BLOCK_N,
                step=config.BLOCK_M,
                keeps_keys=True,
                num_warps=config.num_warps,
                num_stages=config.num_stages,
                matmul_columns=2 * both,
                accumulator_columns=both,
            ),
            PassShape(
                name="dQ",
                kept=config.BLOCK_M_DQ,
                step=config.BLOCK_N_DQ,
                keeps_keys=False,
                num_warps=config.num_warps_dq,
                num_stages=config.num_stages_dq,
                matmul_columns=both + spec.block_d,
                accumulator_columns=spec.block_d,
            ),
        )

    def shared_tiles(self, spec: AttentionSpec, config: KernelConfig, target: GpuTarget) -> tuple[SharedTile, ...]:
        # What a pass keeps is an operand of wgmma in every step, and sits in shared memory beside the pipelined tiles;
        # mma may keep it in registers. The two passes never share a block, so that the larger one counts.
        wgmma = 90 <= target.capability < 100 and not spec.is_fp32
        size, columns = spec.element_bytes, spec.block_d + spec.block_dv

        def tiles(shape: PassShape) -> tuple[SharedTile, ...]:
            copies = shape.num_stages if wgmma else shape.num_stages - 1
            names = ("K and V", "Q and dO") if shape.keeps_keys else ("Q and dO", "K and V")
            kept = SharedTile(name=names[0], rows=shape.kept, columns=columns, element_bytes=size)
            step = SharedTile(name=names[1], rows=shape.step, columns=columns, element_bytes=size, copies=copies)
            return (kept, step) if wgmma and shape.num_stages > 1 else (step,) if copies else ()

        return max(map(tiles, self.passes(spec, config)), key=lambda found: sum(tile.total_bytes for tile in found))

    def kernel_templates(self, spec: AttentionSpec, config: KernelConfig) -> dict[str, str]:
        assert isinstance(config, TlBackwardConfig)
        roles = ["bwd_dkdv", "bwd_dq", *(["bwd"] if config.merged else []), *(["bwd_dbias"] if spec.bias else [])]
        files = {"bwd_dkdv": "dkdv", "bwd_dq": "dq", "bwd": "merged", "bwd_dbias": "dbias"}
        return {role: f"kernel/backward_tl_{files[role]}.py.jinja" for role in roles}

    def structure(self, spec: AttentionSpec, config: KernelConfig) -> str:
        assert isinstance(config, TlBackwardConfig)
        parts = {
            "padded": spec.pads_head_dim and not config.tma,
            "dpfirst": config.dp_first,
            "tma": config.tma and not config.merged,
            "merged": config.merged,
        }
        return "_".join(name for name, present in parts.items() if present)

    def likely_good(self, spec: AttentionSpec, target: GpuTarget) -> tuple[KernelConfig, ...]:
        row = TlBackwardConfig.of_passes
        if spec.is_fp32:
            small = [((16, 32, 4, 1), (32, 16, 4, 1)), ((16, 16, 8, 1), (16, 16, 8, 1))]
            return tuple(row(dkdv, dq) for dkdv, dq in small)
        d = min(256, max(64, spec.block_d, spec.block_dv))
        masked = spec.mask != "full"
        if not target.has_tma:
            # Larger tiles spill on sm_80 to sm_89, whose mma holds all operands in registers.
            tiles = {
                64: [((32, 128, 8, 2), (128, 32, 8, 2)), ((32, 64, 4, 2), (64, 32, 4, 2))],
                128: [((32, 64, 8, 2), (64, 32, 8, 2)), ((32, 64, 4, 1), (64, 32, 4, 1))],
                256: [((16, 64, 8, 2), (64, 16, 8, 2)), ((16, 32, 4, 1), (32, 16, 4, 1))],
            }
            return tuple(row(dkdv, dq) for dkdv, dq in tiles[d])
        tma: dict[int, list[TlBackwardConfig]] = {
            64: [
                row((128, 64, 4, 2), (128, 64, 4, 2), merged=True, tma=True),
                row((128, 64, 4, 2), (64, 64, 4, 3), tma=True),
                row((128, 64, 4, 2), (64, 128, 4, 2), merged=True, tma=True),
                row((128, 64, 4, 2), (64, 64, 4, 2), merged=True, tma=True),
                row((64, 64, 4, 2), (64, 64, 4, 2), merged=True, tma=True),
            ],
            128: [
                row((64, 64, 4, 2), (64, 64, 4, 2), merged=True, tma=True, dp_first=not masked),
                row((64, 64, 4, 2), (128, 32, 8, 3) if masked else (64, 64, 4, 2), tma=True, dp_first=not masked),
                row((64, 64, 4, 2), (64, 64, 4, 2), merged=True, tma=True, dp_first=masked),
                row((32, 64, 4, 3), (64, 32, 4, 3), merged=True, tma=True),
            ],
            256: [
                row((32, 64, 8, 2), (128, 32, 8, 2), merged=True, tma=True, dp_first=True),
                row((32, 64, 8, 2), (128, 32, 8, 2), tma=True, dp_first=True),
                row((32, 64, 8, 2), (128, 32, 8, 2), merged=True, tma=True),
                row((16, 64, 8, 2), (128, 32, 8, 2), merged=True, tma=True),
            ],
        }
        if d == 64 and spec.dropout:
            # Its random bits take registers: the wider tiles spill 200 bytes a thread (triton 3.6, sm_90).
            tma[d] = [
                row((64, 64, 4, 2), (64, 64, 4, 2), merged=True, tma=True),
                row((64, 64, 4, 2), (64, 64, 4, 2), tma=True),
                row((64, 128, 8, 2), (128, 64, 8, 2), merged=True, tma=True),
            ]
        return tuple(tma[d])


def _too_large(spec: AttentionSpec, shape: PassShape, target: GpuTarget) -> str | None:
    """Why a pass has too many warps for its rows, or too few for its accumulators."""
    # wgmma gives a warp 16 rows, unless two groups of warps share the columns of a wide head; mma can split them too.
    least = 16 if 90 <= target.capability < 100 and shape.accumulator_columns <= 256 else 8
    if not spec.is_fp32 and shape.kept // shape.num_warps < least:
        return f"{shape.num_warps} warps share {shape.kept} rows: under {least} rows each"
    threads = shape.num_warps * target.warp_size
    per_thread = shape.kept * (shape.accumulator_columns + shape.step) // threads
    if per_thread > _MAX_ACCUMULATOR_REGISTERS:
        return f"accumulators and scores take {per_thread} registers a thread; over {_MAX_ACCUMULATOR_REGISTERS} spill"
    return None


TL_BACKWARD = TlBackwardFamily()
