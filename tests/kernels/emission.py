"""Emitted modules for tests: rows, their text, and the imported module."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any

from flashgen.codegen.module import GpuTable, ModuleContent, Row, render_module
from flashgen.compiler.load import load_file
from flashgen.config import KernelConfig
from flashgen.families import GluonSm90BackwardConfig, GluonSm90Config, TlConfig
from flashgen.families.tl_backward import TlBackwardConfig
from flashgen.spec import AttentionSpec, Dtype, Op

TL_DTYPES: tuple[Dtype, ...] = ("bf16", "fp16", "fp32")  # those of the families in portable Triton
VARIANTS = ("full", "causal", "window", "window_softcap")
# One knob of structure each, and the longest chain; a kernel's lines differ in these alone.
STRUCTURES: dict[str, dict[str, Any]] = {
    "pointer": {},
    "persistent": {"programs_per_sm": 1},
    "longest": {"longest_first": True},
    "persistent_longest": {"programs_per_sm": 2, "longest_first": True, "heads_per_group": 2},
    "tma": {"tma": True},
    "tma_longest": {"tma": True, "longest_first": True, "heads_per_group": 3},
    "tma_persistent": {"tma": True, "programs_per_sm": 1, "heads_per_group": 8},
    "tma_persistent_longest": {"tma": True, "programs_per_sm": 1, "longest_first": True},
}


def spec_of(
    variant: str, dtype: Dtype, head_dim: int, head_dim_v: int | None = None, op: Op = "forward"
) -> AttentionSpec:
    return AttentionSpec.of_variant(variant, dtype=dtype, head_dim=head_dim, head_dim_v=head_dim_v, op=op)


def config_of(
    variant: str, *, block_m: int, block_n: int, num_warps: int = 4, num_stages: int = 1, **knobs: Any
) -> TlConfig:
    """A config of family `tl`; what starts the longest tiles first is left out where all are equally long."""
    if variant == "full":
        knobs.pop("longest_first", None)
    return TlConfig(BLOCK_M=block_m, BLOCK_N=block_n, num_warps=num_warps, num_stages=num_stages, **knobs)


def rows_of(
    dtypes: tuple[Dtype, ...],
    head_dim: int,
    head_dim_v: int | None = None,
    *,
    variants: Iterable[str] = VARIANTS,
    block_m: int = 32,
    block_n: int = 16,
    **knobs: Any,
) -> tuple[Row, ...]:
    """One rule a variant, all tiled alike."""
    return tuple(
        Row(
            spec=spec_of(variant, dtypes[0], head_dim, head_dim_v),
            dtypes=dtypes,
            config=config_of(variant, block_m=block_m, block_n=block_n, **knobs),
        )
        for variant in variants
    )


def backward_rows_of(
    dtypes: tuple[Dtype, ...],
    head_dim: int,
    head_dim_v: int | None = None,
    *,
    variants: Iterable[str] = VARIANTS,
    kept: int = 32,
    step: int = 16,
    num_warps: int = 4,
    num_stages: int = 1,
    **knobs: Any,
) -> tuple[Row, ...]:
    """One rule a variant for the backward pass, whose programs keep `kept` rows and step over `step`."""
    launch = (num_warps, num_stages)
    config = TlBackwardConfig.of_passes((step, kept, *launch), (kept, step, *launch), **knobs)
    return tuple(
        Row(spec=spec_of(variant, dtypes[0], head_dim, head_dim_v, "backward"), dtypes=dtypes, config=config)
        for variant in variants
    )


def training_rows_of(
    dtypes: tuple[Dtype, ...], head_dim: int, head_dim_v: int | None = None, *, variants: Iterable[str] = VARIANTS
) -> tuple[Row, ...]:
    """One rule a variant for each pass, in small tiles."""
    variants = tuple(variants)
    rows = rows_of(dtypes, head_dim, head_dim_v, variants=variants)
    return rows + backward_rows_of(dtypes, head_dim, head_dim_v, variants=variants)


def gluon_rows_of(dtypes: tuple[Dtype, ...]) -> dict[str, tuple[Row, ...]]:
    """Tables of rules in Gluon, by what their module holds besides."""
    plain = {"BLOCK_M": 128, "BLOCK_N": 64, "num_stages": 2}
    own_form = dict.fromkeys(NOT_IN_FP8, False) if "fp8" in dtypes else {}
    held = {"plain": plain, "every_knob": plain | GLUON_KNOBS | own_form}
    return {
        name: tuple(
            Row(spec=spec_of(variant, dtypes[0], 64), dtypes=dtypes, config=GluonSm90Config(**knobs))
            for variant in (("full", "causal") if name == "plain" else VARIANTS)
        )
        for name, knobs in held.items()
    }


NOT_IN_FP8 = ("fused_scale", "lane_sums", "rescale_first", "joint_release", "pack_gqa")
GLUON_KNOBS: dict[str, Any] = {
    "programs_per_sm": 1,
    "longest_first": True,
    "heads_per_group": 8,
    "ping_pong": True,
    "own_keys": True,
    "fused_scale": True,
    "lane_sums": True,
    "rescale_first": True,
    "joint_release": True,
    "q_stages": 2,
    "pack_gqa": True,
}


def gluon_backward_rows_of(dtypes: tuple[Dtype, ...], **knobs: dict[str, Any]) -> tuple[Row, ...]:
    """A rule in Gluon for each mask; `knobs` are by the mask that they are for."""
    tile = {"BLOCK_M": 64, "BLOCK_N": 128, "num_stages": 2}
    return tuple(
        Row(
            spec=spec_of(variant, dtypes[0], 64, op="backward"),
            dtypes=dtypes,
            config=GluonSm90BackwardConfig(**tile | knobs.get(variant, {})),
        )
        for variant in ("full", "causal", "window")
    )


def every_gluon_kernel(dtype: Dtype) -> Iterator[tuple[AttentionSpec, KernelConfig]]:
    """Every combination of knobs that changes lines, with the head dims that do."""
    tiles, orders = ((64, 128), (128, 128), (64, 64)), product((False, True), (False, True), (0, 1))
    of_128_keys = [dict(zip(("dq_later", "dq_as_held", "programs_per_sm"), values)) for values in orders]
    for row, tile, stagger in product(gluon_backward_rows_of((dtype,)), tiles, (False, True)):
        tiling = {"BLOCK_M": tile[0], "BLOCK_N": tile[1], "num_stages": 2, "stagger": stagger}
        heads = (1, 4) if row.spec.causal else (1,)
        for knobs, heads_per_group in product(of_128_keys if tile[1] == 128 else [{}], heads):
            runs_on = stagger and knobs.get("dq_later", False)  # their lines are far apart
            one_ring = tile[0] == 64 and runs_on and not knobs["programs_per_sm"]
            order = knobs | {"dk_runs_on": runs_on, "one_ring": one_ring, "heads_per_group": heads_per_group}
            yield row.spec, GluonSm90BackwardConfig(**tiling, **order)
    choices = {name: (value, False) if value is True else (value, 0) for name, value in GLUON_KNOBS.items()}
    choices |= {"heads_per_group": (1,), "q_stages": (1, 2)}
    choices |= dict.fromkeys(NOT_IN_FP8, (False,)) if dtype == "fp8" else {}
    far_apart = {
        "lane_sums": "own_keys",
        "rescale_first": "ping_pong",
        "joint_release": "rescale_first",
    }  # of whose lines each combination says nothing
    for variant, head_dims, values in product(VARIANTS, ((64, 64), (128, 64)), product(*choices.values())):
        knobs = dict(zip(choices, values))
        if knobs["pack_gqa"] and not knobs["fused_scale"]:
            continue  # their lines are far apart
        if dtype != "fp8" and any(knobs[one] != knobs[other] for one, other in far_apart.items()):
            continue
        if knobs["q_stages"] <= 1 + knobs["programs_per_sm"] and knobs["longest_first"] <= (variant != "full"):
            spec = spec_of(variant, dtype, *head_dims)
            for rows in (128, 192) if head_dims == (64, 64) else (128,):
                yield spec, GluonSm90Config(BLOCK_M=rows, BLOCK_N=64, num_stages=2, **knobs)


def content_of(portable: tuple[Row, ...], tuned: tuple[Row, ...] = (), pattern: str = ".*") -> ModuleContent:
    """A module with these rules; `tuned` ones are those of any GPU whose name matches `pattern`."""
    table = GpuTable(slug="some-gpu", pattern=pattern, comment="For the GPU of this test.", rows=tuned)
    return ModuleContent(
        gpus=(table,) if tuned else (),
        portable=portable,
        portable_shared_bytes=65536,
        facts=("Small tiles, for tests.",),
        command="flashgen emit --gpu some-gpu",
        version="0.0.0",
    )


class Emitter:
    """Writes modules into a directory and imports them by path; equal contents once."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.modules: dict[ModuleContent, ModuleType] = {}

    def write(self, content: ModuleContent) -> Path:
        text = render_module(content)
        path = self.directory / f"emitted_{hashlib.sha256(text.encode()).hexdigest()[:12]}.py"
        path.write_text(text)
        return path

    def load(self, content: ModuleContent) -> ModuleType:
        if content not in self.modules:
            path = self.write(content)
            self.modules[content] = load_file(path, path.stem)
        return self.modules[content]


# Features one at a time, and all at once with each mask.
FEATURES = ("alibi", "bias", "sink", "dropout")
FEATURED = (*(f"full_{feature}" for feature in FEATURES), *(f"{mask}_alibi_bias_sink_dropout" for mask in VARIANTS))


def every_feature_kernel(dtype: Dtype) -> Iterator[tuple[AttentionSpec, TlConfig]]:
    """The forward kernels with features, through pointers and through TMA."""
    for variant, uses_tma, head_dim in product(FEATURED, (False, True), (16, 24)):
        yield (
            spec_of(variant, dtype, head_dim),
            config_of(variant, block_m=16, block_n=16, num_warps=1, tma=uses_tma),
        )


def every_backward_kernel(dtype: Dtype) -> Iterator[tuple[AttentionSpec, TlBackwardConfig]]:
    """Each combination of mask and structure of the backward pass once, and every feature."""
    structures = [
        {"tma": tma, "merged": merged, "dp_first": first}
        for tma, merged, first in product((False, True), repeat=3)
        if tma or not merged
    ]
    for variant, structure, head_dim in product((*VARIANTS, *FEATURED), structures, (16, 24)):
        rows = backward_rows_of((dtype,), head_dim, variants=(variant,), kept=16, step=16, num_warps=1, **structure)
        assert isinstance(rows[0].config, TlBackwardConfig)
        yield rows[0].spec, rows[0].config


def every_kernel(dtype: Dtype, *, tma: Iterable[bool] = (False, True)) -> Iterator[tuple[AttentionSpec, TlConfig]]:
    """Each combination of mask and structure once, for a head_dim that is a power of two and for one that is padded."""
    flags = product(tma, (0, 1), (False, True), (16, 24))
    for variant, (uses_tma, programs, longest, head_dim) in product(VARIANTS, flags):
        if not (variant == "full" and longest):
            knobs = {"tma": uses_tma, "programs_per_sm": programs, "longest_first": longest}
            yield spec_of(variant, dtype, head_dim), config_of(variant, block_m=16, block_n=16, num_warps=1, **knobs)
