"""The backward in Gluon is exact on a model of Hopper's asynchronous machine, whatever order things happen in."""

from __future__ import annotations

from typing import Any

import pytest

from flashgen.codegen.module import render_module
from flashgen.outcome import Proof
from flashgen.spec import AttentionSpec
from flashgen.verify.probes import Probe, Suite
from flashgen.verify.suites import SUITES
from tests.kernels.emission import content_of, gluon_backward_rows_of
from tests.kernels.gluon.candidates import proven, source_of

LATER, HELD, STAGGER = ({name: True} for name in ("dq_later", "dq_as_held", "stagger"))
RUNS_ON = LATER | {"dk_runs_on": True}
RING = {"one_ring": True}
GROUPS = {"heads_per_group": 4}
STAYS = {"programs_per_sm": 1}  # of which the model's machine runs two at once
# Six heads of keys in all, of more than one block each: the last group has two.
SIX_HEADS = Probe(name="a smaller last group", shape=(2, 6, 3, 70, 200), op="backward")
QUICK = SUITES["quick"]
OF_GROUPS = Suite(name="of groups too", probes=(*QUICK.probes, SIX_HEADS))


@pytest.mark.parametrize(
    ("variant", "head_dims", "queries", "buffers", "knobs"),
    [
        ("full", (64, 64), 128, 2, STAYS | STAGGER | RUNS_ON | HELD),
        ("full", (40, 64), 128, 1, STAYS | HELD),
        ("full", (128, 96), 64, 3, {}),
        ("causal", (128, 128), 64, 2, STAYS | HELD | GROUPS),
        ("causal", (64, 64), 128, 2, STAYS | LATER),
        ("causal", (64, 128), 64, 2, STAGGER | RUNS_ON | RING | GROUPS),
        ("window", (64, 64), 64, 1, STAYS),
        ("window", (64, 24), 128, 2, STAGGER | LATER | RING | HELD),
        ("window", (96, 128), 64, 2, STAYS | LATER | HELD),
        ("full", (256, 256), 64, 2, STAGGER),
        ("causal", (192, 128), 64, 1, GROUPS),
        ("window", (80, 200), 64, 2, STAGGER),
    ],
)
def test_every_mask_and_tile_is_exact(
    variant: str, head_dims: tuple[int, int], queries: int, buffers: int, knobs: dict[str, Any]
) -> None:
    head_dim, head_dim_v = head_dims
    spec = AttentionSpec.of_variant(variant, dtype="fp16", head_dim=head_dim, head_dim_v=head_dim_v, op="backward")
    suite = OF_GROUPS if "heads_per_group" in knobs else QUICK
    outcome = proven(source_of(spec, BLOCK_M=queries, num_stages=buffers, **knobs), spec, suite=suite)
    assert isinstance(outcome, Proof), outcome


@pytest.mark.parametrize(("head_dim", "knobs", "seed"), [(64, {}, 1), (64, STAYS | LATER | HELD, 2), (256, {}, 1)])
def test_the_order_in_which_things_happen_changes_nothing(head_dim: int, knobs: dict[str, Any], seed: int) -> None:
    spec = AttentionSpec.of_variant("causal", dtype="fp16", head_dim=head_dim, op="backward")
    outcome = proven(source_of(spec, **knobs), spec, seed)
    assert isinstance(outcome, Proof), outcome


def test_a_kernel_beside_a_persistent_one_of_groups_has_its_own_arguments() -> None:
    rows = gluon_backward_rows_of(("fp16",), causal=STAYS | GROUPS)
    outcome = proven(render_module(content_of(rows)), rows[0].spec)  # that of every pair, whose rule is the first
    assert isinstance(outcome, Proof), outcome
