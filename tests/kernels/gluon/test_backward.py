"""The backward in Gluon is exact on a model of Hopper's asynchronous machine, whatever order things happen in."""

from __future__ import annotations

from typing import Any

import pytest

from flashgen.outcome import Proof
from flashgen.spec import AttentionSpec
from tests.kernels.gluon.candidates import proven, source_of

LATER, AHEAD, HELD, STAGGER = ({name: True} for name in ("dq_later", "scores_ahead", "dq_as_held", "stagger"))


@pytest.mark.parametrize(
    ("variant", "head_dims", "queries", "buffers", "knobs"),
    [
        ("full", (64, 64), 64, 2, STAGGER | LATER | AHEAD | HELD),
        ("full", (40, 64), 128, 1, LATER | HELD),
        ("full", (128, 96), 64, 3, {}),
        ("causal", (128, 128), 64, 2, AHEAD | HELD),
        ("causal", (64, 64), 128, 2, LATER | AHEAD),
        ("causal", (64, 128), 64, 1, STAGGER),
        ("window", (64, 64), 64, 1, AHEAD),
        ("window", (64, 24), 128, 3, STAGGER | LATER | HELD),
        ("window", (96, 64), 64, 2, HELD),
        ("full", (256, 256), 64, 2, STAGGER),
        ("causal", (192, 128), 64, 1, {}),
        ("window", (80, 200), 64, 2, STAGGER),
    ],
)
def test_every_mask_and_tile_is_exact(
    variant: str, head_dims: tuple[int, int], queries: int, buffers: int, knobs: dict[str, Any]
) -> None:
    head_dim, head_dim_v = head_dims
    spec = AttentionSpec.of_variant(variant, dtype="fp16", head_dim=head_dim, head_dim_v=head_dim_v, op="backward")
    outcome = proven(source_of(spec, BLOCK_M=queries, num_stages=buffers, **knobs), spec)
    assert isinstance(outcome, Proof), outcome


@pytest.mark.parametrize(("head_dim", "seed"), [(64, 1), (64, 2), (256, 1), (256, 2)])
def test_the_order_in_which_things_happen_changes_nothing(head_dim: int, seed: int) -> None:
    spec = AttentionSpec.of_variant("causal", dtype="fp16", head_dim=head_dim, op="backward")
    outcome = proven(source_of(spec), spec, seed)
    assert isinstance(outcome, Proof), outcome
