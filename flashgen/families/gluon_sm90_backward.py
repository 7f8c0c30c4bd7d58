"""Family `gluon_sm90_backward`: dQ, dK and dV in one pass, in Gluon for Hopper.

One pass makes 5 matmuls a tile where two make 7 (arXiv 2407.08608, section 3 and its algorithm for the backward), but
what it adds to dQ comes in any order: two runs may differ in dQ's last bits. See gluon_sm90 on Gluon.
"""

from __future__ import annotations

from dataclasses import dataclass

from flashgen.config import KernelConfig, Knob
from flashgen.families.base import Family, PassShape, SharedTile
from flashgen.families.gluon_sm90 import GLUON_SM90, GROUP_ROWS
from flashgen.hardware.target import GpuTarget
from flashgen.spec import AttentionSpec

_GROUPS = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class GluonSm90BackwardConfig(KernelConfig):
    """The common knobs: a program keeps BLOCK_N keys and steps over BLOCK_M queries, of which num_stages blocks are in
    shared memory at once; num_warps is each warp group's.

    Of 128 keys each of two consumers holds dK and dV of 64; of 64, one consumer holds dK and one dV, as heads of more
    than 128 columns ask for.

    stagger         programs of one head begin at different queries, so as not to add to one block of dQ all at once
    dq_later        128 keys: dQ of a step is multiplied in the next one, so that no consumer waits for the other's dS
    scores_ahead    128 keys: scores of a step are multiplied in the one before, while dQ of that one is stored
    dq_as_held      128 keys: the sum of dQ is in the order in which registers hold dQ, so that 16 bytes of a thread and
                    those of its neighbour lie side by side in shared memory: in other orders they meet in its banks
    """

    family: str = "gluon_sm90_backward"
    num_warps: int = 4
    stagger: bool = False
    dq_later: bool = False
    scores_ahead: bool = False
    dq_as_held: bool = False

    def __post_init__(self) -> None:
        self.require_one_of(_VALUES)
        self.require_flags("stagger", *_ORDERS)

    @property
    def tma(self) -> bool:
        """Tiles always go through TMA tensor descriptors."""
        return True

    @property
    def counts_steps(self) -> bool:
        """Whether consumers count heads and blocks of queries on, rather than divide the number of a step."""
        return self.dq_later or self.scores_ahead or self.dq_as_held


# When a step's matmuls are issued and how dQ is stored, of programs of 128 keys; by knob, what a structure is called.
_ORDERS = {"dq_later": "later", "scores_ahead": "ahead", "dq_as_held": "held"}

_VALUES: dict[str, tuple[Knob, ...]] = {
    "BLOCK_M": (64, 128),
    "BLOCK_N": (64, 128),
    "num_warps": (4,),
    "num_stages": (1, 2, 3),
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
        return _VALUES | dict.fromkeys(("stagger", *_ORDERS), (False, True))

    def excluded(self, spec: AttentionSpec, config: KernelConfig, target: GpuTarget) -> str | None:
        if _keys(spec) != config.BLOCK_N:
            return f"heads of {spec.block_d} and {spec.block_dv} columns take {_keys(spec)} keys"
        if config.BLOCK_M == 128 and max(spec.block_d, spec.block_dv) > 64:
            return "scores of 128 queries leave no registers for dK and dV of 128 columns"
        if config.BLOCK_N == GROUP_ROWS and (held := [name for name in _ORDERS if config.knobs()[name]]):
            return f"{held[0]} is for programs of {_GROUPS * GROUP_ROWS} keys, not of {GROUP_ROWS}"
        return None

    def shared_tiles(self, spec: AttentionSpec, config: KernelConfig, target: GpuTarget) -> tuple[SharedTile, ...]:
        size, queries, keys, copies = spec.element_bytes, config.BLOCK_M, config.BLOCK_N, config.num_stages
        wide = keys == GROUP_ROWS
        dq_columns = dq_columns_of(spec, config)
        tiles = (
            SharedTile(name="Q", rows=queries, columns=spec.block_d, element_bytes=size, copies=copies),
            SharedTile(
                name="dO", rows=queries, columns=spec.block_dv, element_bytes=size, copies=1 if wide else copies
            ),
            SharedTile(name="lse2, delta", rows=2, columns=queries, element_bytes=4, copies=copies),
            SharedTile(name="K", rows=keys, columns=spec.block_d, element_bytes=size),
            SharedTile(name="V", rows=keys, columns=spec.block_dv, element_bytes=size),
            SharedTile(name="dS", rows=keys, columns=queries, element_bytes=size, copies=2),
            SharedTile(name="dQ", rows=_GROUPS * GROUP_ROWS, columns=dq_columns, element_bytes=4),
        )
        p = SharedTile(name="P", rows=keys, columns=queries, element_bytes=4)
        return (*tiles, p) if wide else tiles

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
        wide = "_wide" if config.BLOCK_N == GROUP_ROWS else ""
        orders = "".join(f"_{short}" for name, short in _ORDERS.items() if config.knobs()[name])
        return f"hopper{config.BLOCK_M}{wide}" + ("_stagger" if config.stagger else "") + orders

    def likely_good(self, spec: AttentionSpec, target: GpuTarget) -> tuple[KernelConfig, ...]:
        # What was fastest on an H200 (benchmarks/notes.md).
        plain: list[dict[str, Knob]] = [{}, {"stagger": True}]
        held = [knobs | {"dq_as_held": True} for knobs in plain]
        rows = [(64, knobs) for knobs in plain]
        if _keys(spec) > GROUP_ROWS:
            rows = [(64, knobs) for knobs in held] + rows
        if max(spec.block_d, spec.block_dv) <= 64:
            later = held[0] | {"dq_later": True, "scores_ahead": True}
            rows = [(128, knobs) for knobs in [later, *held, *plain]] + rows
        return tuple(
            GluonSm90BackwardConfig(BLOCK_M=m, BLOCK_N=_keys(spec), num_stages=2, **knobs)  # type: ignore[arg-type]
            for m, knobs in rows
        )


def _keys(spec: AttentionSpec) -> int:
    """The keys of a program: as many as leave room in the registers for their dK and dV."""
    return GROUP_ROWS if max(spec.block_d, spec.block_dv) > 128 else _GROUPS * GROUP_ROWS


def dq_columns_of(spec: AttentionSpec, config: KernelConfig) -> int:
    """Columns of dQ that one consumer adds at once, for 64 queries."""
    if config.BLOCK_N == GROUP_ROWS:
        return 64
    return spec.block_d // _GROUPS if config.BLOCK_M == GROUP_ROWS else spec.block_d


GLUON_SM90_BACKWARD = GluonSm90BackwardFamily()
