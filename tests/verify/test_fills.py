"""The values that a bias gets; those of q, k and v are in test_probes.py."""

from __future__ import annotations

import math
from typing import get_args

import pytest
import torch

from flashgen.verify.fills import fill, fill_bias
from flashgen.verify.probes import NORMAL, Bias, BiasKind


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(2)


def _bias(kind: BiasKind, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    view = torch.full(shape, math.nan, dtype=dtype)
    fill_bias(view, Bias(kind=kind), _generator())
    return view


@pytest.mark.parametrize("kind", get_args(BiasKind))
@pytest.mark.parametrize("shape", [(2, 3, 9, 11), (1, 1, 1, 1), (1, 3, 1, 11), (2, 1, 9, 1), (1, 1, 0, 4)])
def test_every_element_is_filled(kind: BiasKind, shape: tuple[int, ...]) -> None:
    assert not _bias(kind, *shape).isnan().any()


def test_holes_are_a_third_and_one_key() -> None:
    hidden = _bias("holes", 2, 3, 40, 60) == -math.inf
    assert hidden[..., 30].all()
    assert 0.28 < hidden.double().mean() < 0.4
    assert not hidden.all(-1).any()


def test_blind_hides_all_of_every_third_query() -> None:
    hidden = _bias("blind", 2, 3, 10, 12) == -math.inf
    assert hidden[:, :, 1::3].all()
    assert not hidden[:, :, 0::3].any()
    assert not hidden[:, :, 2::3].any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_least_is_the_dtypes_own(dtype: torch.dtype) -> None:
    bias = _bias("least", 1, 1, 5, 8, dtype=dtype)
    assert (bias[:, :, 1::3] == torch.finfo(dtype).min).all()
    assert bias.isfinite().all()


def test_distance_is_that_of_query_and_key() -> None:
    assert _bias("distance", 2, 1, 2, 3)[1, 0].tolist() == [[0, -1, -2], [1, 0, -1]]


def test_elements_that_share_memory_are_drawn_once() -> None:
    row, shared = torch.zeros(1, 8), torch.zeros(1, 8).expand(4, 8)
    fill(row, NORMAL, _generator())
    fill(shared, NORMAL, _generator())
    assert torch.equal(shared, row.expand(4, 8))
