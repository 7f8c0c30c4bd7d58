"""Every structure of kernel against every mask and awkward sizes: exact, alike in both layouts, and repeatable."""

from __future__ import annotations

import math
from itertools import product
from types import ModuleType
from typing import Any

import pytest

from flashgen.spec import Dtype
from tests.cases.case import Case
from tests.cases.check import Checker
from tests.cases.conftest import gpu_tiles
from tests.kernels.emission import STRUCTURES, TL_DTYPES, VARIANTS, Emitter, content_of, rows_of

# (batch, heads_q, heads_kv, seqlen_q, seqlen_k) round the small tiles' 32 x 16: one short, one over, none to see.
SIZES = [(1, 1, 1, 1, 1), (1, 2, 1, 1, 50), (2, 1, 1, 33, 16), (1, 2, 1, 31, 47), (1, 1, 1, 66, 33), (1, 3, 1, 5, 1)]
GPU_SIZES = [(2, 8, 2, 1041, 1024), (1, 4, 4, 129, 2049), (4, 6, 1, 1, 777), (1, 2, 2, 1024, 1024), (3, 5, 5, 300, 100)]
# Masks of a variant as (causal, window); the sizes take turns.
MASKS: dict[str, list[tuple[bool, tuple[int, int]]]] = {
    "full": [(False, (-1, -1))],
    "causal": [(True, (-1, -1)), (False, (-1, 0))],
    "window": [(False, (3, 2)), (True, (20, 0)), (False, (0, 0)), (False, (-1, 5)), (False, (17, -1))],
    "window_softcap": [(True, (-1, -1)), (False, (9, 4)), (False, (-1, -1))],
}
# (head_dim, head_dim_v) that pad one or both to a power of two, or pad none and differ.
HEAD_DIMS = [(24, 24), (32, 16), (16, 40), (1, 1)]


def case_of_sizes(
    sizes: tuple[int, int, int, int, int], variant: str, turn: int, dtype: str, head_dims: tuple[int, int]
) -> Case:
    batch, heads_q, heads_kv, seqlen_q, seqlen_k = sizes
    causal, window = MASKS[variant][turn % len(MASKS[variant])]
    return Case(
        id="grid",
        kind="grid",
        source="",
        op="fwd",
        batch=batch,
        seqlen_q=seqlen_q,
        seqlen_k=seqlen_k,
        heads_q=heads_q,
        heads_kv=heads_kv,
        head_dim=head_dims[0],
        dtype=dtype,
        causal=causal,
        window=window,
        softcap=15.0 if variant.endswith("softcap") else 0.0,
        notes="",
        expect="match_ref",
        where="CPU-i",
        extra={"head_dim_v": head_dims[1], "gain_q": 4.0},
    )


def assert_exact(module: ModuleType, case: Case, device: str = "cpu") -> None:
    """Exact in one layout; a second run, in the other layout, gives the same bits."""
    checker = Checker(module, case, "bshd", device=device)
    checker.matches()
    checker.layout = "bhsd"
    assert checker.run().same_bits(checker.result)


def module_with(emitter: Emitter, structure: str, dtype: Dtype, head_dims: tuple[int, int], **tile: Any) -> ModuleType:
    """A module whose kernels have this structure, for any GPU; through pointers where TMA cannot describe a tensor."""
    knobs = tile | STRUCTURES[structure]
    rows = rows_of((dtype,), *head_dims, **knobs)
    if "tma" not in knobs:
        return emitter.load(content_of(rows))
    return emitter.load(content_of(rows_of((dtype,), *head_dims, **tile), rows))


# The precision of the dots is all that a dtype changes in a kernel's lines.
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(
    ("structure", "dtype"), [*((s, "fp16") for s in STRUCTURES), ("pointer", "fp32"), ("tma", "fp32")]
)
def test_structures_by_masks(structure: str, variant: str, dtype: Any, emitter: Emitter) -> None:
    module = module_with(emitter, structure, dtype, (16, 16))
    for turn, sizes in enumerate(SIZES):
        assert_exact(module, case_of_sizes(sizes, variant, turn, dtype, (16, 16)))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("head_dims", HEAD_DIMS, ids=str)
@pytest.mark.parametrize("structure", ["pointer", "tma_persistent"])
def test_head_dims_by_masks(structure: str, head_dims: tuple[int, int], variant: str, emitter: Emitter) -> None:
    module = module_with(emitter, structure, "fp16", head_dims)
    for turn, sizes in enumerate(SIZES[1:4]):
        assert_exact(module, case_of_sizes(sizes, variant, turn, "fp16", head_dims))


@pytest.mark.parametrize(("block_m", "block_n"), [(16, 16), (16, 64), (64, 16), (128, 128)])
@pytest.mark.parametrize("variant", VARIANTS)
def test_tiles_by_masks(block_m: int, block_n: int, variant: str, emitter: Emitter) -> None:
    """Tiles wider than tall, taller than wide, and larger than everything."""
    module = module_with(emitter, "longest", "fp32", (16, 16), block_m=block_m, block_n=block_n)
    for turn, sizes in enumerate([(1, 1, 1, 65, 65), (1, 2, 1, 20, 130), (1, 1, 1, 50, 17)]):
        assert_exact(module, case_of_sizes(sizes, variant, turn, "fp32", (16, 16)))


@pytest.mark.parametrize("softcap", [0.0, 15.0])
@pytest.mark.parametrize("structure", STRUCTURES)
def test_nan_in_keys_that_no_query_sees(structure: str, softcap: float, emitter: Emitter) -> None:
    """Before the window there may be anything: pages not loaded yet, or freed."""
    module = module_with(emitter, structure, "fp16", (16, 16))
    case = case_of_sizes((1, 2, 1, 5, 70), "window", 0, "fp16", (16, 16)).but({"window": (3, 0), "softcap": softcap})
    clean, spoilt = (Checker(module, case, "bshd") for _ in range(2))
    clean.matches()
    spoilt.inputs.k[:, :62], spoilt.inputs.v[:, :62] = math.nan, math.nan
    assert spoilt.run().same_bits(clean.result)


def _full_size_grid() -> list[tuple[str, tuple[int, int], str, str]]:
    """Each structure with each mask in each dtype, the head dims taking turns: a kernel takes seconds to compile."""
    head_dims = [(64, 64), (80, 80), (128, 128), (192, 128), (256, 256)]
    combinations = product(STRUCTURES, VARIANTS, TL_DTYPES)
    return [
        (s, head_dims[turn % len(head_dims)], variant, dtype) for turn, (s, variant, dtype) in enumerate(combinations)
    ]


@pytest.mark.gpu
@pytest.mark.parametrize(("structure", "head_dims", "variant", "dtype"), _full_size_grid())
def test_full_size(structure: str, head_dims: tuple[int, int], variant: str, dtype: Any, emitter: Emitter) -> None:
    import torch

    if structure.startswith("tma") and torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("this GPU has no TMA")
    module = module_with(emitter, structure, dtype, head_dims, **gpu_tiles(max(head_dims), dtype))
    for turn, sizes in enumerate(GPU_SIZES):
        assert_exact(module, case_of_sizes(sizes, variant, turn, dtype, head_dims), "cuda")
