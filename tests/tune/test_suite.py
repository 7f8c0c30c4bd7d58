"""What a candidate is shown before it is timed."""

from __future__ import annotations

import pytest

from flashgen.spec import FEATURES, OPS, AttentionSpec, Op
from flashgen.tune.suite import CANDIDATE


def _spec(op: Op, variant: str = "full") -> AttentionSpec:
    return AttentionSpec.of_variant(variant, dtype="bf16", head_dim=128, op=op)


@pytest.mark.parametrize("op", OPS)
def test_lengths_keep_to_two_classes_of_sizes(op: Op) -> None:
    """Multiples of 16, as what is timed, and odd ones."""
    lengths = [probe.shape[3:] for probe in CANDIDATE.suited(_spec(op, "window"))]
    assert all({length % 16 for length in pair} == {0} or all(length % 2 for length in pair) for pair in lengths)
    assert any(length % 16 for pair in lengths for length in pair)


@pytest.mark.parametrize("op", OPS)
def test_every_mask_has_more_queries_than_keys_and_more_keys_than_queries(op: Op) -> None:
    shapes = [probe.shape for probe in CANDIDATE.suited(_spec(op))]
    assert any(shape[3] > shape[4] for shape in shapes)
    assert any(shape[3] < shape[4] for shape in shapes)
    assert any(shape[1] > shape[2] for shape in shapes)


@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("op", OPS)
def test_features_are_shown_by_the_same_probes(op: Op, feature: str) -> None:
    assert CANDIDATE.suited(_spec(op, f"full_{feature}")) == CANDIDATE.suited(_spec(op))


def test_a_backward_candidate_is_shown_gradients_of_the_lse() -> None:
    assert {probe.dlse for probe in CANDIDATE.suited(_spec("backward"))} == {False, True}
