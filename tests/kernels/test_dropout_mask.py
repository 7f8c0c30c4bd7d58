"""The pairs that dropout keeps look drawn: fairly, and independently of their neighbours. That kernels keep these very
pairs is what the proofs of rules with dropout show."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from flashgen.codegen.candidate import candidate_source
from flashgen.compiler.load import load_source
from flashgen.families import TL
from flashgen.spec import AttentionSpec

Mask = Callable[..., torch.Tensor]

_SHAPE = (2, 4, 192, 320)
_PAIRS = math.prod(_SHAPE)
_SEED = (0x1234_5678_9ABC, 77)


@pytest.fixture(scope="module")
def kept() -> Mask:
    """kept((seed, offset), shape, dropout_p) of an emitted module."""
    config = TL.config({"BLOCK_M": 32, "BLOCK_N": 32, "num_warps": 4, "num_stages": 1})
    spec = AttentionSpec.of_variant("full_dropout", dtype="fp16", head_dim=16)
    module = load_source(candidate_source(spec, config), "dropping")

    def mask(seed: tuple[int, int] = _SEED, shape: tuple[int, ...] = _SHAPE, dropout_p: float = 0.5) -> torch.Tensor:
        result: torch.Tensor = module.dropout_mask(torch.tensor(seed), *shape, dropout_p, "cpu")
        assert result.dtype == torch.bool
        assert result.shape == shape
        return result

    return mask


def _z_scores(counts: torch.Tensor, draws: int, share: float) -> torch.Tensor:
    """How many standard deviations of the binomial distribution each count is off."""
    return (counts.double() - draws * share) / math.sqrt(draws * share * (1 - share))


def _correlation(x: torch.Tensor, y: torch.Tensor) -> float:
    """In standard deviations of what independent masks show."""
    a, b = (mask.double().flatten() - mask.double().mean() for mask in (x, y))
    return float((a * b).mean() / (a.square().mean() * b.square().mean()).sqrt()) * math.sqrt(a.numel())


@pytest.mark.parametrize("dropout_p", [0.001, 0.1, 0.25, 0.5, 0.9])
@pytest.mark.parametrize("seed", [_SEED, (0, 0), (2**62 - 1, 2**62 - 1)])
def test_the_share_is_right(kept: Mask, seed: tuple[int, int], dropout_p: float) -> None:
    assert abs(_z_scores(kept(seed, _SHAPE, dropout_p).sum(), _PAIRS, 1 - dropout_p)) < 5


def test_without_dropout_all_are_kept(kept: Mask) -> None:
    assert kept(_SEED, _SHAPE, 0.0).all()


@pytest.mark.parametrize("dropout_p", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("dims", [(3,), (2,), (0, 1, 2), (0, 1, 3), (2, 3), (1, 2, 3)], ids=str)
def test_every_row_column_and_head_has_its_share(kept: Mask, dims: tuple[int, ...], dropout_p: float) -> None:
    """The counts over `dims` spread as drawn ones do: no more, and no less."""
    z = _z_scores(kept(dropout_p=dropout_p).sum(dims), math.prod(_SHAPE[dim] for dim in dims), 1 - dropout_p).flatten()
    assert z.abs().max() < 5
    assert abs(float(z.square().mean()) - 1) < 5 * math.sqrt(2 / z.numel())


_LAGS = (1, 2, 3, 4, 8, 16, 31, 32, 64, 128)


@pytest.mark.parametrize(("dim", "lag"), [(dim, lag) for dim in range(4) for lag in _LAGS if lag < _SHAPE[dim]])
def test_neighbours_are_independent(kept: Mask, dim: int, lag: int) -> None:
    mask, size = kept(dropout_p=0.3), _SHAPE[dim] - lag
    assert abs(_correlation(mask.narrow(dim, 0, size), mask.narrow(dim, lag, size))) < 5


def test_neighbours_of_two_rows_are_independent(kept: Mask) -> None:
    """Rows and columns meet in one word: what two rows share must not depend on how two columns differ."""
    mask = kept(shape=(1, 1, 128, 256))[0, 0]
    parity = mask[:-1, :-1] ^ mask[:-1, 1:] ^ mask[1:, :-1] ^ mask[1:, 1:]
    assert abs(_z_scores(parity.sum(), parity.numel(), 0.5)) < 5


def test_patterns_of_four_neighbours_are_as_frequent(kept: Mask) -> None:
    words = kept().reshape(-1, 4).long() @ torch.tensor([8, 4, 2, 1])
    counts = torch.bincount(words, minlength=16).double()
    chi_square = float(((counts - counts.mean()).square() / counts.mean()).sum())
    assert chi_square < 15 + 5 * math.sqrt(2 * 15)


@pytest.mark.parametrize(
    "other",
    [
        (_SEED[0] + 1, _SEED[1]),
        (_SEED[0], _SEED[1] + 1),
        (_SEED[0] + 2**32, _SEED[1]),
        (_SEED[0], _SEED[1] + 2**32),
        (_SEED[0] ^ 2**61, _SEED[1]),
        (_SEED[1], _SEED[0]),
    ],
    ids=["next seed", "next offset", "seed's upper word", "offset's upper word", "seed's upper bits", "swapped"],
)
def test_seeds_and_offsets_are_independent(kept: Mask, other: tuple[int, int]) -> None:
    assert abs(_correlation(kept(dropout_p=0.3), kept(other, dropout_p=0.3))) < 5


def test_a_batch_goes_on_where_the_heads_end(kept: Mask) -> None:
    """What counts is batch * heads + head: no two of them are alike."""
    flat = kept().reshape(8, -1)
    assert torch.equal(kept(shape=(8, 1, *_SHAPE[2:])).reshape(8, -1), flat)
    assert len({tuple(row[:64].tolist()) for row in flat}) == 8


def test_other_lengths_keep_the_same_pairs(kept: Mask) -> None:
    """Queries count from the first, keys from the last, as the masks of attention do."""
    whole = kept()
    assert torch.equal(kept(shape=(2, 4, 57, 320)), whole[:, :, :57])
    assert torch.equal(kept(shape=(2, 4, 192, 91)), whole[..., -91:])


def test_equal_seeds_keep_the_same_pairs(kept: Mask) -> None:
    assert torch.equal(kept(), kept())
    assert not torch.equal(kept(), kept((1, 2)))


def test_more_dropout_drops_more(kept: Mask) -> None:
    """One number a pair decides at any p, so that masks of two p are nested."""
    little, much = kept(dropout_p=0.2), kept(dropout_p=0.6)
    assert not (much & ~little).any()
