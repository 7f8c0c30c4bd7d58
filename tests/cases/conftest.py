"""Modules of small tiles for the interpreter, and of real ones for a GPU."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType
from typing import Any, Literal, Protocol

import pytest

from flashgen.codegen.module import Row
from flashgen.spec import Dtype
from tests.cases.case import Case
from tests.kernels.emission import VARIANTS, Emitter, backward_rows_of, content_of, rows_of

Loads = Literal["pointer", "tma"]


class ModuleOf(Protocol):
    """The module that serves a case's dtype, head_dim and features through the loads that are named."""

    def __call__(self, case: Case, loads: Loads, *, on_gpu: bool = False) -> ModuleType: ...


# Longest tiles first and two heads at a time, so that the order of tiles is never the plain one.
_INTERPRETED: dict[str, dict[str, Any]] = {
    "pointer": {"block_m": 32, "block_n": 16, "longest_first": True},
    "tma": {"block_m": 16, "block_n": 32, "tma": True, "programs_per_sm": 1, "heads_per_group": 2},
}
_INTERPRETED_BACKWARD: dict[str, dict[str, Any]] = {
    "pointer": {"kept": 32, "step": 16},
    "tma": {"kept": 16, "step": 32, "tma": True, "merged": True, "dp_first": True},
}


def gpu_tiles(head_dim: int, dtype: str) -> dict[str, Any]:
    """A tile that fits any GPU with 99 KiB of shared memory a block; fp32 has no matrix unit, and wants small ones."""
    if dtype == "fp32" or head_dim > 128:
        return {"block_m": 32, "block_n": 16, "num_warps": 4, "num_stages": 1}
    if head_dim > 64:
        return {"block_m": 64, "block_n": 64, "num_warps": 4, "num_stages": 2}
    return {"block_m": 128, "block_n": 64, "num_warps": 8, "num_stages": 2}


def gpu_backward_tiles(head_dim: int, dtype: str) -> dict[str, Any]:
    """The same for the backward pass, whose programs keep four tiles."""
    if dtype == "fp32" or head_dim > 128:
        return {"kept": 32, "step": 16, "num_warps": 4, "num_stages": 1}
    return {"kept": 64, "step": 32, "num_warps": 4, "num_stages": 1}


def _rows(case: Case, loads: Loads, on_gpu: bool) -> tuple[Row, ...]:
    """A rule for every mask, and those of the backward pass if the case has one."""
    dtype: Dtype = case.given("dtype")
    sizes = (case.given("head_dim"), case.extra.get("head_dim_v", case.given("head_dim")))
    variants = ["_".join((variant, *case.features)) for variant in VARIANTS]
    block = case.extra.get("block")
    forward, backward = dict(_INTERPRETED[loads]), dict(_INTERPRETED_BACKWARD[loads])
    if on_gpu:
        forward |= gpu_tiles(max(sizes), dtype)
        backward |= gpu_backward_tiles(max(sizes), dtype)
    if block is not None:
        forward |= {"block_m": block, "block_n": block}
        backward |= {"kept": block, "step": block}
    rows = rows_of((dtype,), *sizes, variants=variants, **forward)
    return rows if case.op == "fwd" else rows + backward_rows_of((dtype,), *sizes, variants=variants, **backward)


def _through_pointers(row: Row) -> Row:
    changes: dict[str, Any] = {name: False for name in ("tma", "merged") if hasattr(row.config, name)}
    return replace(row, config=replace(row.config, **changes))


@pytest.fixture(scope="session")
def module_of(emitter: Emitter) -> ModuleOf:
    def load(case: Case, loads: Loads, *, on_gpu: bool = False) -> ModuleType:
        rows = _rows(case, loads, on_gpu)
        if loads == "pointer":
            return emitter.load(content_of(rows))
        # What TMA cannot describe is tiled alike, so that the same values give the same bits either way.
        return emitter.load(content_of(tuple(map(_through_pointers, rows)), rows))

    return load
