"""Family `gluon_sm90`: the forward in Gluon for Hopper. A producer warp group fetches by TMA, consumer warp groups keep
the tensor cores busy with one block while they compute the softmax of another (FlashAttention-3, arXiv 2407.08608).

In fp8 (e4m3) V is transposed by a kernel of its own first, since wgmma takes 8-bit operands by rows alone. It adds
their products up in 14 bits, in which a sum over thousands of keys stands still: each block's PV is a sum of its own,
which is added to the output in fp32.

Gluon is experimental and has no interpreter: kernels compile anywhere, and are proven on the GPU alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from flashgen.config import KernelConfig, Knob
from flashgen.families.base import Family, PassShape, SharedTile
from flashgen.families.tl import TL
from flashgen.hardware.target import GpuTarget
from flashgen.spec import AttentionSpec, Workload

GLUON_TRITONS = ((3, 6), (3, 9))  # the first and the last triton that the tests compile these kernels with
GROUP_ROWS = 64  # queries of one consumer: what one warp group's wgmma takes
_CONSUMER_REGISTERS = {1: 240, 2: 240, 3: 160}  # a thread's, of 65536 an SM; the producer gets what is left
_MOST_COLUMNS = {1: 320, 2: 320, 3: 192}  # of output and scores, in fp32, that these hold beside P and addresses
_MOST_COLUMNS_FP8 = {1: 384, 2: 384, 3: 256}  # also of a block's PV, where P takes half the registers
_MOST_DV_FP8 = 128
_FP8_COLUMNS = 32  # a step of wgmma's
_FEATURES = {"softcap"}
ALL_HEADS = 4096  # more than there are: longest first over all heads, which balances causal work best


@dataclass(frozen=True, kw_only=True, slots=True)
class GluonSm90Config(KernelConfig):
    """Knobs of `gluon_sm90`. BLOCK_M is 64 for each consumer, num_warps each warp group's, num_stages the number of
    blocks of K and of V that are in shared memory at once.

    programs_per_sm 0 launches one program a tile; 1 launches one an SM, which loops over tiles (persistent)
    longest_first   start the tiles with most keys first (causal and window)
    heads_per_group heads (packs of heads) whose tiles run interleaved, so that their K and V share the L2; 1 runs head
                    by head
    ping_pong       consumers issue their matmuls in turn, so that one has the tensor cores while others exponentiate
    own_keys        a consumer skips blocks of keys that its own 64 queries do not see, rather than mask what others see
    fused_scale     one multiply-add takes a score to its exponent, where subtracting and scaling are two operations
    lane_sums       each of a row's four threads adds up the P that it holds; they are added to each other at the end
    rescale_first   the output is rescaled before P is computed, not after: its multiplications fill the slots that
                    exponentials leave free, and the matmul before has less time
    joint_release   with rescale_first: K of a block and V of the one before are released together, by one arrival
    q_stages        tiles of Q in shared memory: with 2 the next Q comes while a tile is computed (persistent)
    pack_gqa        a tile holds queries of up to 16 heads that share their keys, so that few queries fill it too and
                    fetch the keys once; a call takes the greatest power of two that divides its heads a group
    """

    family: str = "gluon_sm90"
    num_warps: int = 4
    programs_per_sm: int = 0
    longest_first: bool = False
    heads_per_group: int = 1
    ping_pong: bool = False
    own_keys: bool = True
    fused_scale: bool = False
    lane_sums: bool = False
    rescale_first: bool = False
    joint_release: bool = False
    q_stages: int = 1
    pack_gqa: bool = False

    def __post_init__(self) -> None:
        self.require_one_of(_VALUES)
        self.require_positive("heads_per_group")
        self.require_flags("longest_first", "ping_pong", "own_keys", *_SOFTMAX, "joint_release", "pack_gqa")

    @property
    def groups(self) -> int:
        """Consumer warp groups."""
        return self.BLOCK_M // GROUP_ROWS

    @property
    def consumer_registers(self) -> int:
        """Registers of a consumer's thread."""
        return _CONSUMER_REGISTERS[self.groups]

    @property
    def persistent(self) -> bool:
        return self.programs_per_sm > 0

    @property
    def tma(self) -> bool:
        """Q, K, V and the output always go through TMA tensor descriptors."""
        return True

    def needs_o_smem(self, spec: AttentionSpec) -> bool:
        """Whether the output does not leave by way of Q's shared memory: rows of another length or dtype cannot."""
        return spec.block_d != spec.block_dv or spec.out_dtype != spec.dtype


# How the softmax is computed; by knob, what a structure is called. fp8 has a way of its own.
_SOFTMAX = {"fused_scale": "fused", "lane_sums": "lanes", "rescale_first": "first"}

_VALUES: dict[str, tuple[Knob, ...]] = {
    "BLOCK_M": (64, 128, 192),
    "BLOCK_N": (64, 128),
    "num_warps": (4,),
    "num_stages": (1, 2, 3, 4),
    "programs_per_sm": (0, 1),
    "q_stages": (1, 2),
}


class GluonSm90Family(Family):
    name = "gluon_sm90"
    op = "forward"
    config_type = GluonSm90Config
    interpreted = False

    def unsupported(self, spec: AttentionSpec, target: GpuTarget) -> str | None:
        if target.arch != "sm_90":
            return f"its wgmma is sm_90's alone; {target.slug} is {target.arch}"
        if not spec.is_fp8 and (why := TL.unsupported(spec, target)) is not None:
            return why
        if spec.is_fp32:
            return "wgmma multiplies operands of 16 bits or 8; fp32 would be rounded to TF32"
        if spec.is_fp8 and min(spec.block_d, spec.block_dv) < _FP8_COLUMNS:
            return f"wgmma in e4m3 takes {_FP8_COLUMNS} columns at a time; head_dim {spec.head_dim} has fewer"
        if spec.is_fp8 and spec.block_dv > _MOST_DV_FP8:
            return (
                f"in e4m3 a block's PV is held beside the output, up to {_MOST_DV_FP8} columns; "
                f"head_dim_v {spec.head_dim_v} has more"
            )
        if others := [feature for feature in spec.features if feature not in _FEATURES]:
            return f"it has no {others[0]}"
        return None

    def choices(self, spec: AttentionSpec, target: GpuTarget) -> dict[str, tuple[Knob, ...]]:
        masked = spec.causal or spec.window
        return _VALUES | {
            "BLOCK_M": (128, 192),
            "longest_first": (True, False) if masked else (False,),
            "heads_per_group": (1, 8, ALL_HEADS),
            "ping_pong": (False, True),
            "own_keys": (True, False),
            **dict.fromkeys(_SOFTMAX, (False,) if spec.is_fp8 else (False, True)),
            **dict.fromkeys(("joint_release", "pack_gqa"), (False,) if spec.is_fp8 else (False, True)),
        }

    def is_idle(self, config: KernelConfig, workloads: Sequence[Workload]) -> bool:
        assert isinstance(config, GluonSm90Config)
        return config.pack_gqa and all((each.heads_q // each.heads_kv) % 2 for each in workloads)

    def excluded(self, spec: AttentionSpec, config: KernelConfig, target: GpuTarget) -> str | None:
        assert isinstance(config, GluonSm90Config)
        most = (_MOST_COLUMNS_FP8 if spec.is_fp8 else _MOST_COLUMNS)[config.groups]
        columns = spec.block_dv * (2 if spec.is_fp8 else 1) + config.BLOCK_N
        if columns > most:
            return f"output and scores have {columns} columns; registers of {config.groups} consumers hold {most}"
        if config.q_stages > 1 and not config.persistent:
            return f"{config.q_stages} q_stages pay only where a program has a next tile"
        if spec.is_fp8 and any(config.knobs()[name] for name in _SOFTMAX):
            return "fp8 has a softmax of its own"
        if spec.is_fp8 and config.pack_gqa:
            return "in fp8 each head has a descale factor of its own"
        if config.rescale_first and config.num_stages == 1:
            return "rescale_first awaits a block's V while the one before is still in its place: it takes 2 num_stages"
        if config.joint_release and not config.rescale_first:
            return "joint_release is for rescale_first: else V of the block before is done with much later than K"
        if config.groups == 1 and (config.ping_pong or not config.own_keys):
            return "one consumer has no turns to take, and sees the tile's keys"
        return None

    def shared_tiles(self, spec: AttentionSpec, config: KernelConfig, target: GpuTarget) -> tuple[SharedTile, ...]:
        assert isinstance(config, GluonSm90Config)
        size, copies = spec.element_bytes, config.num_stages
        tiles = [
            SharedTile(name="Q", rows=config.BLOCK_M, columns=spec.block_d, element_bytes=size, copies=config.q_stages),
            SharedTile(name="K", rows=config.BLOCK_N, columns=spec.block_d, element_bytes=size, copies=copies),
            SharedTile(name="V", rows=config.BLOCK_N, columns=spec.block_dv, element_bytes=size, copies=copies),
        ]
        if config.needs_o_smem(spec):
            tiles.append(
                SharedTile(name="Out", rows=config.BLOCK_M, columns=spec.block_dv, element_bytes=spec.out_bytes)
            )
        return tuple(tiles)

    def passes(self, spec: AttentionSpec, config: KernelConfig) -> tuple[PassShape, ...]:
        assert isinstance(config, GluonSm90Config)
        return (
            PassShape(
                name="forward",
                kept=config.BLOCK_M,
                step=config.BLOCK_N,
                keeps_keys=False,
                num_warps=4 * (config.groups + 1),
                num_stages=config.num_stages,
                matmul_columns=spec.block_d + spec.block_dv,
                accumulator_columns=spec.block_dv,
            ),
        )

    def kernel_templates(self, spec: AttentionSpec, config: KernelConfig) -> dict[str, str]:
        return {"fwd": "kernel/forward_gluon_sm90.py.jinja"}

    def structure(self, spec: AttentionSpec, config: KernelConfig) -> str:
        assert isinstance(config, GluonSm90Config)
        parts = {
            f"hopper{config.groups}": True,
            "persistent": config.persistent,
            "longest": config.longest_first,
            "pingpong": config.ping_pong,
            "tilekeys": not config.own_keys,
            **{short: bool(config.knobs()[name]) for name, short in _SOFTMAX.items()},
            _SOFTMAX["rescale_first"]: config.rescale_first and not config.joint_release,
            "kv": config.joint_release,
            f"q{config.q_stages}": config.q_stages > 1,
            "packs": config.pack_gqa,
            "apart": config.needs_o_smem(spec),
        }
        return "_".join(name for name, present in parts.items() if present)

    def likely_good(self, spec: AttentionSpec, target: GpuTarget) -> tuple[KernelConfig, ...]:
        # What was fastest on an H200 (benchmarks/notes.md): programs that stay and take turns, where two Qs fit, and
        # programs of a tile each, whose heads come one by one or eight at a time.
        masked = spec.causal or spec.window
        wide = max(spec.block_d, spec.block_dv)
        tiles, softmaxes = _likely_tiles(wide, spec.is_fp8), _likely_softmaxes(wide, spec.is_fp8)
        stays: dict[str, Knob] = {"programs_per_sm": 1, "q_stages": 1 if wide > 128 else 2}
        in_turn = stays | {"heads_per_group": 8, "ping_pong": True} | softmaxes[0]
        turns = [_guess(tile, masked, in_turn) for tile in tiles]
        leaving = [
            _guess(tiles[0], masked, softmax | {"heads_per_group": heads})
            for softmax in reversed(softmaxes)
            for heads in (8, 1)
        ]
        stays |= {"heads_per_group": ALL_HEADS if masked else 8}
        staying = [_guess(tiles[0], masked, stays | softmax) for softmax in softmaxes[:2]]
        packed = [] if spec.is_fp8 else [replace(turns[0], pack_gqa=True)]
        return (*turns, *leaving, *staying, *packed)


def _likely_tiles(wide: int, is_fp8: bool) -> list[tuple[int, int]]:
    if wide <= 64:
        return [(192, 64 if is_fp8 else 128), (128, 128)]
    return [(128, 64), (128, 128)] if is_fp8 else [(128, 64 if wide > 128 else 128)]


def _likely_softmaxes(wide: int, is_fp8: bool) -> list[dict[str, Knob]]:
    """At 64 columns exponentials bound the kernel, above them what is left to fill the time between."""
    if is_fp8:
        return [{}]
    lanes: dict[str, Knob] = {"fused_scale": wide <= 128, "lane_sums": True}
    first = lanes | {"rescale_first": True}
    joint = [first | {"joint_release": True}] if wide > 64 else []
    return [lanes, first, *joint, *([{}] if wide > 128 else [])]


def _guess(tile: tuple[int, int], longest_first: bool, knobs: dict[str, Knob]) -> GluonSm90Config:
    given: dict[str, Knob] = {"longest_first": longest_first, "own_keys": tile[0] > tile[1]} | knobs
    return GluonSm90Config(BLOCK_M=tile[0], BLOCK_N=tile[1], num_stages=2, **given)  # type: ignore[arg-type]


GLUON_SM90 = GluonSm90Family()
