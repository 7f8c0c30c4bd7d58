"""The share of pairs that a mask keeps."""

from __future__ import annotations

import pytest
import torch

from flashgen.verify.dropout import unfairness


def _drawn(share: float, pairs: int = 10_000, seed: int = 0) -> torch.Tensor:
    return torch.rand(1, 1, 1, pairs, generator=torch.Generator().manual_seed(seed)) < share


@pytest.mark.parametrize("dropout_p", [0.1, 0.5, 0.9])
def test_what_is_drawn_fairly_passes(dropout_p: float) -> None:
    assert all(unfairness(_drawn(1 - dropout_p, seed=seed), dropout_p) is None for seed in range(200))


@pytest.mark.parametrize("dropout_p", [0.1, 0.5, 0.9])
def test_what_keeps_as_many_as_it_should_drop_does_not(dropout_p: float) -> None:
    assert unfairness(_drawn(1 - dropout_p + 0.04), dropout_p) is not None
    assert unfairness(_drawn(1 - dropout_p - 0.04), dropout_p) is not None


def test_few_pairs_may_all_be_dropped_or_kept() -> None:
    assert unfairness(torch.ones(1, 1, 1, 1, dtype=torch.bool), 0.9) is None
    assert unfairness(torch.zeros(1, 1, 1, 1, dtype=torch.bool), 0.1) is None
    assert unfairness(torch.zeros(1, 1, 5, 0, dtype=torch.bool), 0.5) is None


def test_no_dropout_keeps_all() -> None:
    assert unfairness(torch.ones(1, 1, 30, 30, dtype=torch.bool), 0.0) is None
    assert unfairness(torch.arange(900).reshape(1, 1, 30, 30) > 1, 0.0) == (
        "dropout_mask keeps 898 of 900 pairs where 900 are due"
    )
