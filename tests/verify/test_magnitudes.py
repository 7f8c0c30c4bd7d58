"""Magnitudes are what sums measure when the signs of their terms are drawn."""

from __future__ import annotations

import pytest
import torch

from flashgen.verify.magnitudes import gradient_magnitudes
from flashgen.verify.reference import Features, Scoring, dropped, reference_gradients, softmax

_SCORING = Scoring(scale=0.5, left=4, right=1)


def _drawn(heads_q: int = 4, heads_k: int = 2, keys: int = 7) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(4)
    shapes = ((heads_q, 5, 8), (heads_k, keys, 8), (heads_k, keys, 6), (heads_q, 5, 6))
    return tuple(torch.randn(2, *shape, generator=generator) for shape in shapes)


def _features() -> Features:
    generator = torch.Generator().manual_seed(5)
    return Features(
        bias=torch.randn(1, 4, 5, 7, generator=generator),
        sinks=torch.randn(4, generator=generator),
        keep=torch.rand(2, 4, 5, 7, generator=generator) > 0.3,
        dropout_p=0.3,
    )


def test_terms_of_random_signs_are_as_large() -> None:
    """With signs drawn for every rounding error, the errors' root mean square is the magnitude, times the rounding."""
    (q, k, v, dout), features, rounding = (x.double() for x in _drawn()), _features(), 2.0**-20
    generator = torch.Generator().manual_seed(1)

    def sign(x: torch.Tensor) -> torch.Tensor:
        return torch.randint(0, 2, x.shape, generator=generator) * 2.0 - 1.0

    keys, values = (x.repeat_interleave(2, 1) for x in (k, v))
    p, lse = softmax(q, k, _SCORING, features)
    kept = dropped(torch.ones_like(p), features)
    out = (p * kept) @ values
    squares: dict[str, torch.Tensor] = {}
    for _ in range(draws := 3000):
        # Errors of each product that dP sums, of each element of out, and of each probability in dV.
        products = dout[..., :, None, :] * values[..., None, :, :]
        dp = (products * sign(products)).sum(-1) * kept
        delta = (out * dout * sign(out)).sum(-1, keepdim=True)
        ds = p * (dp - delta) * sign(p)
        shared = _SCORING.scale * (p * delta) @ keys
        errors = {
            "dq": _SCORING.scale * ds @ keys + shared * sign(delta),
            "dk": _SCORING.scale * (ds.transpose(-1, -2) @ q).unflatten(1, (2, 2)).sum(2),
            "dv": ((p * kept * sign(p)).transpose(-1, -2) @ dout).unflatten(1, (2, 2)).sum(2),
            "dbias": ds.sum(0, keepdim=True),
            "dsinks": ((features.sinks[:, None] - lse).exp() * delta[..., 0]).sum((0, 2)),  # type: ignore[index]
        }
        for name, error in errors.items():
            squares[name] = squares.get(name, torch.zeros_like(error)) + (rounding * error).square()
    magnitudes = gradient_magnitudes(*_drawn(), _SCORING, features)
    assert set(magnitudes) == set(squares)
    for name, magnitude in magnitudes.items():
        torch.testing.assert_close((squares[name] / draws).sqrt(), rounding * magnitude, rtol=0.12, atol=1e-9)


def test_a_single_key_has_a_magnitude_where_the_gradient_is_zero() -> None:
    inputs, scoring = _drawn(keys=1), Scoring(scale=0.5)
    gradient, magnitude = (f(*inputs, scoring)["dq"] for f in (reference_gradients, gradient_magnitudes))
    assert gradient.abs().max() < 1e-12
    assert magnitude.min() > 1e-2


def test_what_is_not_seen_has_none() -> None:
    magnitudes = gradient_magnitudes(*_drawn(), Scoring(scale=0.5, left=1, right=0))
    assert (magnitudes["dk"][:, :, 0] == 0).all()
    assert (magnitudes["dv"][:, :, 0] == 0).all()
    assert (magnitudes["dk"][:, :, 1:] > 0).all()


def test_a_gradient_of_the_lse_adds_to_it() -> None:
    inputs = _drawn()
    dlse = torch.full((2, 4, 5), 1000.0)
    without, given = (gradient_magnitudes(*inputs, _SCORING, Features(), x) for x in (None, dlse))
    assert (given["dk"] > 10 * without["dk"])[:, :, 1:].all()
    torch.testing.assert_close(given["dv"], without["dv"])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_factors_below_the_dtypes_normal_numbers_count_as_the_least_of_these(dtype: torch.dtype) -> None:
    q, k, v, dout = (x.to(dtype) for x in _drawn())
    least = torch.finfo(dtype).smallest_normal
    sinks = torch.full((4,), 200.0)  # leaves every key a probability of exp(-200)
    magnitude = gradient_magnitudes(q, k, v, dout, Scoring(scale=0.5), Features(sinks=sinks))["dv"]
    expected = least * dout.double().square().sum(2).unflatten(1, (2, 2)).sum(2).sqrt()
    torch.testing.assert_close(magnitude, expected[:, :, None].expand(magnitude.shape))
