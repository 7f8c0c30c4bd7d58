"""The backward in Gluon is exact on a model of Hopper's asynchronous machine, whatever order things happen in."""

from __future__ import annotations

import pytest

from flashgen.outcome import Proof
from flashgen.spec import AttentionSpec
from tests.kernels.gluon.candidates import proven, source_of


@pytest.mark.parametrize(
    ("variant", "head_dims", "queries", "buffers", "stagger"),
    [
        ("full", (64, 64), 64, 2, True),
        ("full", (40, 64), 128, 1, False),
        ("full", (128, 96), 64, 3, False),
        ("causal", (128, 128), 64, 2, False),
        ("causal", (64, 64), 128, 2, False),
        ("causal", (64, 128), 64, 1, True),
        ("window", (64, 64), 64, 1, False),
        ("window", (64, 24), 128, 3, True),
        ("full", (256, 256), 64, 2, True),
        ("causal", (192, 128), 64, 1, False),
        ("window", (80, 200), 64, 2, True),
    ],
)
def test_every_mask_and_tile_is_exact(
    variant: str, head_dims: tuple[int, int], queries: int, buffers: int, stagger: bool
) -> None:
    head_dim, head_dim_v = head_dims
    spec = AttentionSpec.of_variant(variant, dtype="fp16", head_dim=head_dim, head_dim_v=head_dim_v, op="backward")
    outcome = proven(source_of(spec, BLOCK_M=queries, num_stages=buffers, stagger=stagger), spec)
    assert isinstance(outcome, Proof), outcome


@pytest.mark.parametrize(("head_dim", "seed"), [(64, 1), (64, 2), (256, 1), (256, 2)])
def test_the_order_in_which_things_happen_changes_nothing(head_dim: int, seed: int) -> None:
    spec = AttentionSpec.of_variant("causal", dtype="fp16", head_dim=head_dim, op="backward")
    outcome = proven(source_of(spec), spec, seed)
    assert isinstance(outcome, Proof), outcome
