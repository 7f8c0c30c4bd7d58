"""The forward in Gluon is exact on a model of Hopper's asynchronous machine, whatever order things happen in."""

from __future__ import annotations

from itertools import cycle
from typing import Any

import pytest
import torch

from flashgen.outcome import Proof
from flashgen.spec import AttentionSpec
from tests.kernels.gluon.candidates import loaded, proven, source_of

VARIANTS = ("full", "causal", "window", "full_softcap", "causal_softcap", "window_softcap")
STRUCTURES: dict[str, dict[str, Any]] = {
    "plain": {},
    "three_groups": {"BLOCK_M": 192, "BLOCK_N": 128, "pack_gqa": True},
    "one_buffer": {"BLOCK_M": 192, "num_stages": 1},
    "three_take_turns": {"BLOCK_M": 192, "ping_pong": True, "num_stages": 3},
    "two_q": {"programs_per_sm": 1, "q_stages": 2, "num_stages": 4, "pack_gqa": True},
    "long_blocks": {"BLOCK_N": 128, "programs_per_sm": 1, "ping_pong": True, "heads_per_group": 8},
    "fused_scale": {"fused_scale": True, "lane_sums": True, "rescale_first": True},
    "tile_keys": {"BLOCK_M": 192, "own_keys": False, "rescale_first": True, "joint_release": True},
    "all": {
        "BLOCK_M": 192,
        "programs_per_sm": 1,
        "q_stages": 2,
        "ping_pong": True,
        "heads_per_group": 4096,
        "fused_scale": True,
        "lane_sums": True,
        "rescale_first": True,
        "joint_release": True,
        "pack_gqa": True,
    },
}
# Each structure with each mask, features in turn; head dims in turn: as they are, padded, and of K and V apart.
HEAD_DIMS = cycle([(64, 64), (40, 24), (192, 128)])
CASES = [
    (structure, variant, next(HEAD_DIMS))
    for index, structure in enumerate(STRUCTURES)
    for variant in (VARIANTS[:3] if index % 2 else VARIANTS[3:])
]


@pytest.mark.parametrize(("structure", "variant", "head_dims"), CASES)
def test_every_structure_is_exact(structure: str, variant: str, head_dims: tuple[int, int]) -> None:
    spec = AttentionSpec.of_variant(variant, dtype="fp16", head_dim=head_dims[0], head_dim_v=head_dims[1])
    outcome = proven(source_of(spec, **STRUCTURES[structure]), spec)
    assert isinstance(outcome, Proof), outcome


@pytest.mark.parametrize(("variant", "seed"), [("causal", 1), ("window", 2)])
def test_the_order_in_which_things_happen_changes_nothing(variant: str, seed: int) -> None:
    spec = AttentionSpec.of_variant(variant, dtype="fp16", head_dim=64)
    outcome = proven(source_of(spec, **STRUCTURES["all"]), spec, seed)
    assert isinstance(outcome, Proof), outcome


def off_by(source: str, log2_score: int) -> float:
    """The largest error of out where keys rival for scores near 2^log2_score, each block's highest above the last's.

    The rivals differ by multiples of what fp32 resolves there, so that only the exponent's arithmetic is to blame.
    """
    generator, keys = torch.Generator().manual_seed(log2_score), torch.arange(256)
    finest = 2.0 ** max(-6, log2_score - 22)
    rising = torch.rand(len(keys), generator=generator) + (3 - keys // 64)  # blocks are attended from the last one on
    q, k = torch.zeros(1, 1, 64, 64), torch.zeros(1, 1, len(keys), 64)
    q[..., 0], k[..., 0] = 2.0 ** (log2_score // 2), 2.0 ** (log2_score - log2_score // 2)
    q[..., 1], k[0, 0, :, 1] = 1.0, (rising / finest).round() * finest
    q, k, v = (x.half() for x in (q, k, torch.randn(k.shape, generator=generator)))
    out, lse = torch.full_like(q, float("nan")), torch.empty(1, 1, 64)
    module = loaded(source)
    module._execute(module.PORTABLE[0], q, k, v, out, lse, 1.0, -1, -1, 0.0)
    expected = torch.softmax(q.double() @ k.double().transpose(-1, -2), -1) @ v.double()
    return float((out.double() - expected).abs().max())


@pytest.mark.parametrize("fused_scale", [False, True])
@pytest.mark.parametrize("log2_score", [0, 14, 18, 20, 22, 24, 27, 28, 30])
def test_rivals_among_large_scores_get_their_shares(log2_score: int, fused_scale: bool) -> None:
    spec = AttentionSpec.of_variant("full", dtype="fp16", head_dim=64)
    assert off_by(source_of(spec, fused_scale=fused_scale), log2_score) < 2e-4


def test_the_excess_of_a_rounded_maximum_is_carried_on() -> None:
    spec = AttentionSpec.of_variant("full", dtype="fp16", head_dim=64)
    source = source_of(spec, fused_scale=True)
    assert " + (excess - excess_i)" in source
    assert off_by(source.replace(" + (excess - excess_i)", ""), 22) > 2e-3
