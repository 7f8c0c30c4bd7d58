"""Modules of small tiles for the interpreter, and of real ones for a GPU."""

from __future__ import annotations

from types import ModuleType
from typing import Any, Literal, Protocol

import pytest

from flashgen.spec import Dtype
from tests.cases.case import Case
from tests.kernels.emission import Emitter, content_of, rows_of

Loads = Literal["pointer", "tma"]


class ModuleOf(Protocol):
    """The module that serves a case's dtype and head_dim through the loads that are named."""

    def __call__(self, case: Case, loads: Loads, *, on_gpu: bool = False) -> ModuleType: ...


# Longest tiles first and two heads at a time, so that the order of tiles is never the plain one.
_INTERPRETED: dict[str, dict[str, Any]] = {
    "pointer": {"block_m": 32, "block_n": 16, "longest_first": True},
    "tma": {"block_m": 16, "block_n": 32, "tma": True, "programs_per_sm": 1, "heads_per_group": 2},
}


def gpu_tiles(head_dim: int, dtype: str) -> dict[str, Any]:
    """A tile that fits any GPU with 99 KiB of shared memory a block; fp32 has no matrix unit, and wants small ones."""
    if dtype == "fp32" or head_dim > 128:
        return {"block_m": 32, "block_n": 16, "num_warps": 4, "num_stages": 1}
    if head_dim > 64:
        return {"block_m": 64, "block_n": 64, "num_warps": 4, "num_stages": 2}
    return {"block_m": 128, "block_n": 64, "num_warps": 8, "num_stages": 2}


@pytest.fixture(scope="session")
def module_of(emitter: Emitter) -> ModuleOf:
    def load(case: Case, loads: Loads, *, on_gpu: bool = False) -> ModuleType:
        dtype: Dtype = case.given("dtype")
        sizes = (case.given("head_dim"), case.extra.get("head_dim_v", case.head_dim))
        knobs = dict(_INTERPRETED[loads])
        if on_gpu:
            knobs |= gpu_tiles(max(sizes), dtype)
        if block := case.extra.get("block"):
            knobs |= {"block_m": block, "block_n": block}
        chosen = rows_of((dtype,), *sizes, **knobs)
        if loads == "pointer":
            return emitter.load(content_of(chosen))
        # What TMA cannot describe is tiled alike, so that the same values give the same bits either way.
        return emitter.load(content_of(rows_of((dtype,), *sizes, **knobs | {"tma": False}), chosen))

    return load
