"""Family `gluon_sm90_backward`: dQ, dK and dV in one pass, in Gluon for Hopper.

One pass makes 5 matmuls a tile where two make 7 (arXiv 2407.08608, section 3 and its algorithm for the backward), but
what it adds to dQ comes in any order: two runs may differ in dQ's last bits. See gluon_sm90 on Gluon.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from flashgen.config import KernelConfig, Knob
from flashgen.families.base import Family, PassShape, SharedTile
from flashgen.families.gluon_sm90 import ALL_HEADS, GLUON_SM90, GROUP_ROWS
from flashgen.hardware.target import GpuTarget
from flashgen.spec import AttentionSpec

_GROUPS = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class GluonSm90BackwardConfig(KernelConfig):
    """The common knobs: a program keeps BLOCK_N keys and steps over BLOCK_M queries, of which num_stages blocks are in
    shared memory at once; num_warps is each warp group's.

    Of 128 keys each of two consumers holds dK and dV of 64; of 64, one consumer holds dK and one dV, as heads of more
    than 128 columns ask for.

    programs_per_sm 128 keys: 0 launches one program a tile; 1 launches one an SM, which loops over tiles (persistent)
    heads_per_group causal: heads of keys whose tiles run interleaved, the longest first: those of few heads share Q and
                    dO in the L2, and the last are short, where a long one would be waited for; 1 runs head by head
    stagger         programs of one head begin at different queries, so as not to add to one block of dQ all at once
    dq_later        128 keys: dQ of a step is multiplied in the next one, so that no consumer waits for the other's dS
    dq_as_held      128 keys: the sum of dQ is in the order in which registers hold dQ, so that 16 bytes of a thread and
                    those of its neighbour lie side by side in shared memory: in other orders they meet in its banks
    dk_runs_on      dq_later: a step's last matmul is dK's, which goes on while dQ is stored and leaves to be added
    one_ring        dq_later: Q and dO of a step come by one barrier and go by one, with which its place for dS goes too
    """

    family: str = "gluon_sm90_backward"
    num_warps: int = 4
    stagger: bool = False
    dq_later: bool = False
    dq_as_held: bool = False
    dk_runs_on: bool = False
    one_ring: bool = False
    programs_per_sm: int = 0
    heads_per_group: int = 1

    def __post_init__(self) -> None:
        self.require_one_of(_VALUES)
        self.require_positive("heads_per_group")
        self.require_flags("stagger", *_ORDERS)

    @property
    def tma(self) -> bool:
        """Tiles always go through TMA tensor descriptors."""
        return True

    @property
    def counts_steps(self) -> bool:
        """Whether consumers count heads and blocks of queries on, rather than divide the number of a step."""
        return self.dq_later or self.dq_as_held or self.persistent

    @property
    def persistent(self) -> bool:
        return self.programs_per_sm > 0

    @property
    def grouped(self) -> bool:
        """Whether tiles of several heads run interleaved."""
        return self.heads_per_group > 1


# When a step's matmuls are issued and how dQ is stored, of programs of 128 keys; by knob, what a structure is called.
_ORDERS = {"dq_later": "later", "dq_as_held": "held", "dk_runs_on": "dk_on", "one_ring": "ring"}

_VALUES: dict[str, tuple[Knob, ...]] = {
    "BLOCK_M": (64, 128),
    "BLOCK_N": (64, 128),
    "num_warps": (4,),
    "num_stages": (1, 2, 3),
    "programs_per_sm": (0, 1),
}


class GluonSm90BackwardFamily(Family):
    name = "gluon_sm90_backward"
    op = "backward"
    config_type = GluonSm90BackwardConfig
    interpreted = False
    unordered = True

    def unsupported(self, spec: AttentionSpec, target: GpuTarget) -> str | None:
        if (why := GLUON_SM90.unsupported(spec, target)) is not None:
            return why
        if spec.is_fp8:
            return "fp8 has no gradients"
        if spec.features:
            return f"it has no {spec.features[0]}"
        if spec.block_d // _GROUPS < (least := 64 if _keys(spec) == GROUP_ROWS else 32):
            return (
                f"half of head_dim {spec.head_dim} is less than the {least} columns of dQ that a consumer adds at once"
            )
        return None

    def choices(self, spec: AttentionSpec, target: GpuTarget) -> dict[str, tuple[Knob, ...]]:
        heads = (1, 4, 8, ALL_HEADS) if spec.causal else (1,)
        return _VALUES | dict.fromkeys(("stagger", *_ORDERS), (False, True)) | {"heads_per_group": heads}

    def excluded(self, spec: AttentionSpec, config: KernelConfig, target: GpuTarget) -> str | None:
        assert isinstance(config, GluonSm90BackwardConfig)
        if _keys(spec) != config.BLOCK_N:
            return f"heads of {spec.block_d} and {spec.block_dv} columns take {_keys(spec)} keys"
        if config.grouped and not spec.causal:
            return f"tiles are all as long without a causal mask, here {spec.mask}"
        if config.BLOCK_M == 128 and max(spec.block_d, spec.block_dv) > 64:
            return "scores of 128 queries leave no registers for dK and dV of 128 columns"
        held = [name for name in (*_ORDERS, "programs_per_sm") if config.knobs()[name]]
        if held and config.BLOCK_N == GROUP_ROWS:
            return f"{held[0]} is for programs of {_GROUPS * GROUP_ROWS} keys, not of {GROUP_ROWS}"
        if config.one_ring and not (config.dq_later and config.num_stages == 2 and not config.persistent):
            return "one_ring is for dq_later with 2 num_stages and a tile a program: dS is then counted as Q and dO are"
        if config.dk_runs_on and not config.dq_later:
            return "dk_runs_on is for dq_later: else dK would wait, with dQ before it, for the other consumer's dS"
        if config.persistent and spec.block_d != spec.block_dv:
            return (
                "dK and dV of a persistent program leave by way of the same memory; "
                f"theirs have {spec.block_d} and {spec.block_dv} columns"
            )
        return None

    def shared_tiles(self, spec: AttentionSpec, config: KernelConfig, target: GpuTarget) -> tuple[SharedTile, ...]:
        assert isinstance(config, GluonSm90BackwardConfig)
        size, queries, keys, copies = spec.element_bytes, config.BLOCK_M, config.BLOCK_N, config.num_stages
        wide = keys == GROUP_ROWS
        dq_columns = dq_columns_of(spec, config)
        tiles = [
            SharedTile(name="Q", rows=queries, columns=spec.block_d, element_bytes=size, copies=copies),
            SharedTile(
                name="dO", rows=queries, columns=spec.block_dv, element_bytes=size, copies=1 if wide else copies
            ),
            SharedTile(name="lse2, delta", rows=2, columns=queries, element_bytes=4, copies=copies),
            SharedTile(name="K", rows=keys, columns=spec.block_d, element_bytes=size),
            SharedTile(name="V", rows=keys, columns=spec.block_dv, element_bytes=size),
            SharedTile(name="dS", rows=keys, columns=queries, element_bytes=size, copies=2),
            SharedTile(name="dQ", rows=_GROUPS * GROUP_ROWS, columns=dq_columns, element_bytes=4),
        ]
        if wide:
            tiles.append(SharedTile(name="P", rows=keys, columns=queries, element_bytes=4))
        if config.persistent:
            tiles.append(SharedTile(name="dK or dV", rows=keys, columns=spec.block_d, element_bytes=size))
        return tuple(tiles)

    def passes(self, spec: AttentionSpec, config: KernelConfig) -> tuple[PassShape, ...]:
        return (
            PassShape(
                name="dQ, dK and dV",
                kept=config.BLOCK_N,
                step=config.BLOCK_M,
                keeps_keys=True,
                num_warps=4 * (_GROUPS + 1),
                num_stages=config.num_stages,
                matmul_columns=3 * spec.block_d + 2 * spec.block_dv,
                accumulator_columns=spec.block_d + spec.block_dv,
            ),
        )

    def kernel_templates(self, spec: AttentionSpec, config: KernelConfig) -> dict[str, str]:
        wide = "_wide" if config.BLOCK_N == GROUP_ROWS else ""
        return {"bwd": f"kernel/backward_gluon_sm90{wide}.py.jinja"}

    def structure(self, spec: AttentionSpec, config: KernelConfig) -> str:
        assert isinstance(config, GluonSm90BackwardConfig)
        parts = {
            f"hopper{config.BLOCK_M}": True,
            "wide": config.BLOCK_N == GROUP_ROWS,
            "persistent": config.persistent,
            "groups": config.grouped,
            "stagger": config.stagger,
        }
        parts |= {short: bool(config.knobs()[name]) for name, short in _ORDERS.items()}
        return "_".join(name for name, present in parts.items() if present)

    def likely_good(self, spec: AttentionSpec, target: GpuTarget) -> tuple[KernelConfig, ...]:
        # What was fastest on an H200 (benchmarks/notes.md).
        queries = 128 if max(spec.block_d, spec.block_dv) <= 64 else 64
        plain = GluonSm90BackwardConfig(BLOCK_M=queries, BLOCK_N=_keys(spec), num_stages=2)
        if _keys(spec) == GROUP_ROWS:
            return (plain, replace(plain, stagger=True))
        held = replace(plain, dq_as_held=True)
        later = replace(held, dq_later=True)
        runs_on = replace(later, dk_runs_on=True)
        rings = [replace(each, one_ring=True) for each in (runs_on, later)]
        staying = [replace(each, programs_per_sm=1) for each in (later, held)] if spec.block_d == spec.block_dv else []
        if spec.causal:
            fours = [replace(each, heads_per_group=4) for each in rings]
            even = [replace(each, heads_per_group=ALL_HEADS) for each in staying[:1]]
            return (runs_on, *fours, *staying, *even, rings[0], held, plain)
        return (later, runs_on, *rings, *staying, replace(rings[0], stagger=True), held, plain)


def _keys(spec: AttentionSpec) -> int:
    """The keys of a program: as many as leave room in the registers for their dK and dV."""
    return GROUP_ROWS if max(spec.block_d, spec.block_dv) > 128 else _GROUPS * GROUP_ROWS


def dq_columns_of(spec: AttentionSpec, config: KernelConfig) -> int:
    """Columns of dQ that one consumer adds at once, for 64 queries."""
    if config.BLOCK_N == GROUP_ROWS:
        return 64
    return spec.block_d // _GROUPS if config.BLOCK_M == GROUP_ROWS else spec.block_d


GLUON_SM90_BACKWARD = GluonSm90BackwardFamily()
