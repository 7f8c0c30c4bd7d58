"""The forward in Gluon is exact on a model of Hopper's asynchronous machine, whatever order things happen in."""

from __future__ import annotations

from itertools import cycle
from typing import Any

import pytest

from flashgen.outcome import Proof
from flashgen.spec import AttentionSpec
from tests.kernels.gluon.candidates import proven, source_of

VARIANTS = ("full", "causal", "window", "full_softcap", "causal_softcap", "window_softcap")
STRUCTURES: dict[str, dict[str, Any]] = {
    "plain": {},
    "three_groups": {"BLOCK_M": 192, "BLOCK_N": 128},
    "one_buffer": {"BLOCK_M": 192, "num_stages": 1},
    "ping_pong": {"ping_pong": True, "num_stages": 3},
    "three_take_turns": {"BLOCK_M": 192, "ping_pong": True},
    "persistent": {"programs_per_sm": 1, "heads_per_group": 8},
    "two_q": {"programs_per_sm": 1, "q_stages": 2, "num_stages": 4},
    "long_blocks": {"BLOCK_N": 128, "programs_per_sm": 1, "ping_pong": True},
    "tile_keys": {"BLOCK_M": 192, "own_keys": False},
    "all": {"BLOCK_M": 192, "programs_per_sm": 1, "q_stages": 2, "ping_pong": True, "heads_per_group": 4096},
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


@pytest.mark.parametrize(("variant", "seed"), [("causal", 1), ("window", 2), ("causal", 3), ("window", 4)])
def test_the_order_in_which_things_happen_changes_nothing(variant: str, seed: int) -> None:
    spec = AttentionSpec.of_variant(variant, dtype="fp16", head_dim=64)
    outcome = proven(source_of(spec, **STRUCTURES["all"]), spec, seed)
    assert isinstance(outcome, Proof), outcome
