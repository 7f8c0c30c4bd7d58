"""What passes for attention in fp8: what e4m3 and Hopper's tensor cores lose, and nothing coarser."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from flashgen.verify.fp8 import BLOCK_LOSS, expected_fp8
from flashgen.verify.reference import PLAIN, Scoring, group_size, softmax
from tests.kernels.gluon.tensor_core import short_sum

FP8 = torch.float8_e4m3fn
Rounding = Callable[[torch.Tensor], torch.Tensor]
Matmul = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def inputs(
    head_dim: int = 128,
    rows: tuple[int, int] = (40, 300),
    *,
    gain_q: float = 1.0,
    gain_v: float = 1.0,
    offset_v: float = 0.0,
) -> Any:
    """q, k, v in e4m3, two query heads a kv head, and their factors."""
    generator = torch.Generator().manual_seed(7)
    q, k, v = (torch.randn(1, heads, n, head_dim, generator=generator) for heads, n in zip((4, 2, 2), (*rows, rows[1])))
    descales = tuple(0.5 + torch.rand(1, heads, generator=generator) for heads in (4, 2, 2))
    return (q * gain_q).to(FP8), k.to(FP8), (v * gain_v + offset_v).to(FP8), descales


def in_e4m3(p: torch.Tensor, factor: float = 256.0) -> torch.Tensor:
    return (p * factor).to(FP8).double() / factor


def in_powers_of_two(p: torch.Tensor) -> torch.Tensor:
    """Without the three bits of e4m3's mantissa."""
    return (p.float().view(torch.int32) + (1 << 22) & ~((1 << 23) - 1)).view(torch.float32).double()


def by_blocks(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a @ b as the tensor cores add up, begun anew each 128 terms."""
    return sum(short_sum(*part).double() for part in zip(a.split(128, -1), b.split(128, -2)))  # type: ignore[return-value]


def all_at_once(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return short_sum(a, b).double()


def kernel(
    given: Any,
    scoring: Scoring,
    rounded: Rounding = in_e4m3,
    scores: Matmul = torch.matmul,
    output: Matmul = torch.matmul,
) -> dict[str, Any]:
    """out and lse as a kernel would have them: P divided by its largest and rounded, the sum of P not."""
    q, k, v, (q_descale, k_descale, v_descale) = given
    group = group_size(q, k)
    k, v = (x.double().repeat_interleave(group, 1) for x in (k, v))
    factor = q_descale * k_descale.repeat_interleave(group, 1)
    qk = scores(q.double(), k.transpose(-1, -2)) * factor[..., None, None] * scoring.scale
    largest = qk.amax(-1, keepdim=True)
    p = (qk - largest).exp()
    out = output(rounded(p), v) / p.sum(-1, keepdim=True) * v_descale.repeat_interleave(group, 1)[..., None, None]
    return {"out": out.bfloat16(), "lse": (largest + p.sum(-1, keepdim=True).log())[..., 0].float()}


def ratios(given: Any, results: dict[str, Any], scoring: Scoring) -> dict[str, float]:
    expected = expected_fp8(*given, scoring)
    return {name: expected[name].deviation_of(result).ratio for name, result in results.items()}


@pytest.mark.parametrize("sums", [(torch.matmul, torch.matmul), (all_at_once, by_blocks)], ids=["exact", "short"])
@pytest.mark.parametrize("gain_q", [0.0, 1.0, 20.0])
@pytest.mark.parametrize("offset_v", [0.0, 100.0])
@pytest.mark.parametrize("head_dim", [32, 256])
def test_what_the_hardware_loses_passes_with_room(
    head_dim: int, offset_v: float, gain_q: float, sums: tuple[Matmul, Matmul]
) -> None:
    given, scoring = inputs(head_dim, gain_q=gain_q, offset_v=offset_v), Scoring(scale=head_dim**-0.5)
    found = ratios(given, kernel(given, scoring, in_e4m3, *sums), scoring)
    assert max(found.values()) < 0.75
    if sums[0] is all_at_once and gain_q:
        assert found["lse"] > 0.05


@pytest.mark.parametrize("head_dim", [128, 256])
def test_scores_of_one_sign_lose_more_than_half_a_bit_a_step(head_dim: int) -> None:
    """What made kernels fail on an H200 when that was all they were granted."""
    q, k, v, descales = inputs(head_dim)
    q = (torch.round(q.float() * 16) / 16 + 1).to(FP8)
    k = torch.full_like(k.float(), 30.0).to(FP8)
    given, scoring = (q, k, v, descales), Scoring(scale=head_dim**-0.5)
    results = kernel(given, scoring, scores=all_at_once)
    exact = kernel(given, scoring)["lse"]
    assert 0.1 < ratios(given, results, scoring)["lse"] < 0.75
    half_a_bit = 2.0**-14 * max(2.0, head_dim / 32) * exact.abs().max()
    assert (results["lse"] - exact).abs().max() > half_a_bit


@pytest.mark.parametrize(("keys", "output", "least", "most"), [
    (16384, by_blocks, 0.01, 0.2),
    (2048, all_at_once, 0.3, 0.9),
    (8192, all_at_once, 1.5, 3.0),  # off by 15%
])  # fmt: skip
def test_a_sum_over_many_keys_must_be_in_fp32(keys: int, output: Matmul, least: float, most: float) -> None:
    given, scoring = inputs(32, (4, keys), gain_q=0.1, gain_v=0.25, offset_v=1.5), Scoring(scale=32**-0.5)
    assert least < ratios(given, kernel(given, scoring, output=output), scoring)["out"] < most


def test_coarser_probabilities_do_not_pass() -> None:
    given, scoring = inputs(32, (100, 300), offset_v=1.0), Scoring(scale=1.0)
    assert ratios(given, kernel(given, scoring), scoring)["out"] < 0.75
    assert ratios(given, kernel(given, scoring, in_powers_of_two), scoring)["out"] > 1.0


def test_probabilities_without_their_factor_do_not_pass() -> None:
    """One key far above many: together these have much of the sum, each less than e4m3 holds."""
    q, k, v, descales = inputs(64, (4, 3000), offset_v=100.0)
    q, descales = torch.ones_like(q.float()).to(FP8), tuple(torch.ones_like(x) for x in descales)
    k = (k.float() * 0.25).to(FP8)
    k[:, :, -1] = 1.0
    given, scoring = (q, k, v, descales), Scoring(scale=0.125)
    assert ratios(given, kernel(given, scoring), scoring)["out"] < 0.75
    assert ratios(given, kernel(given, scoring, lambda p: in_e4m3(p, 1.0)), scoring)["out"] > 1.0


@pytest.mark.parametrize(("which", "off", "shown_by"), [(0, 1.02, "lse"), (1, 1.02, "lse"), (2, 1.15, "out")])
def test_a_factor_that_is_somewhat_off_does_not_pass(which: int, off: float, shown_by: str) -> None:
    given, scoring = inputs(), Scoring(scale=128**-0.5)
    descales = [x * (off if i == which else 1.0) for i, x in enumerate(given[3])]
    found = ratios(given, kernel((*given[:3], descales), scoring), scoring)
    assert found[shown_by] > 1.0


def test_lse_is_held_to_the_precision_of_scores() -> None:
    given, scoring = inputs(), Scoring(scale=128**-0.5)
    results = kernel(given, scoring)
    results["lse"] += 0.02
    assert ratios(given, results, scoring)["lse"] > 1.0


def test_a_query_without_keys_has_nothing() -> None:
    given, scoring = inputs(64, (40, 20)), Scoring(scale=0.125, right=0)
    expected = expected_fp8(*given, scoring)
    blind = expected["lse"].reference.isinf()
    assert blind.sum() == 4 * 20
    assert not expected["out"].reference[blind].any()
    out = torch.zeros_like(expected["out"].standard)
    out[~blind] = expected["out"].standard[~blind]
    assert expected["out"].deviation_of(out).ratio < 1.0
    out[0, 0, 0, 0] = 1e-3
    assert expected["out"].deviation_of(out).ratio > 1.0


def test_the_size_of_terms_counts_only_keys_that_are_seen() -> None:
    given, scoring = inputs(64, (8, 8)), Scoring(scale=0.125, right=0)
    p, _ = softmax(*(x.double() for x in given[:2]), scoring, PLAIN)
    first = expected_fp8(*given, scoring)["out"].unit[:, :, 0] / (1.0 + 2.0**4 * BLOCK_LOSS)
    value = given[2][:, :, 0].double().abs() * given[3][2][..., None]
    assert (p[:, :, 0, 1:] == 0).all()
    torch.testing.assert_close(first, value.repeat_interleave(2, 1), rtol=0.02, atol=1e-9)
