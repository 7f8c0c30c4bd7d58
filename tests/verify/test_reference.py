"""The reference against a loop that spells out the definition, and against torch; its gradients against differences."""

from __future__ import annotations

import math

import pytest
import torch

from flashgen.verify.reference import (
    PLAIN,
    Features,
    Scoring,
    reference,
    reference_gradients,
    standard,
    standard_gradients,
)
from tests.verify.fused import fused_backward


def _drawn(
    batch: int, heads_q: int, heads_k: int, seqlen_q: int, seqlen_k: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    shapes = ((heads_q, seqlen_q, 8), (heads_k, seqlen_k, 8), (heads_k, seqlen_k, 6))
    q, k, v = (torch.randn(batch, *shape, generator=generator) for shape in shapes)
    return q, k, v


def _features(words: str, batch: int, heads_q: int, seqlen_q: int, seqlen_k: int) -> Features:
    """Those named, in float64 so that nothing rounds; the bias hides a few pairs."""
    generator = torch.Generator().manual_seed(6)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    scores = (batch, heads_q, seqlen_q, seqlen_k)
    slopes, bias, sinks, keep = drawn(batch, heads_q).abs(), drawn(*scores), drawn(heads_q), drawn(*scores) > 0
    return Features(
        alibi_slopes=slopes if "alibi" in words else None,
        bias=bias.masked_fill(bias > 1.2, -math.inf) if "bias" in words else None,
        sinks=sinks if "sink" in words else None,
        keep=keep if "dropout" in words else None,
        dropout_p=0.4 if "dropout" in words else 0.0,
    )


def _spelled_out(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scoring: Scoring, features: Features = PLAIN
) -> tuple[torch.Tensor, torch.Tensor]:
    """One query at a time, in Python floats."""
    (batch, heads_q, seqlen_q, _), seqlen_k = q.shape, k.shape[2]
    out = torch.zeros(batch, heads_q, seqlen_q, v.shape[-1], dtype=torch.float64)
    lse = torch.full((batch, heads_q, seqlen_q), -math.inf, dtype=torch.float64)
    for z in range(batch):
        for h in range(heads_q):
            kv_head = h // (heads_q // k.shape[1])
            for i in range(seqlen_q):
                scores = {}
                for j in range(seqlen_k):
                    past, ahead = i + seqlen_k - seqlen_q - j, j - (i + seqlen_k - seqlen_q)
                    if (scoring.left < 0 or past <= scoring.left) and (scoring.right < 0 or ahead <= scoring.right):
                        score = scoring.scale * float(q[z, h, i].double() @ k[z, kv_head, j].double())
                        cap = scoring.softcap
                        score = cap * math.tanh(score / cap) if cap else score
                        if features.alibi_slopes is not None:
                            score -= float(features.alibi_slopes[z, h]) * abs(past)
                        if features.bias is not None:
                            score += float(features.bias[z, h, i, j])
                        scores[j] = score
                sink = [] if features.sinks is None else [float(features.sinks[h])]
                total = sum(math.exp(score) for score in (*scores.values(), *sink))
                if total:
                    lse[z, h, i] = math.log(total)
                for j, score in scores.items():
                    kept = 1.0 if features.keep is None else float(features.keep[z, h, i, j]) / (1 - features.dropout_p)
                    if score > -math.inf:
                        out[z, h, i] += kept * math.exp(score - float(lse[z, h, i])) * v[z, kv_head, j].double()
    return out, lse


@pytest.mark.parametrize(
    ("left", "right", "softcap"),
    [(-1, -1, 0.0), (-1, 0, 0.0), (2, 0, 0.0), (0, 0, 0.0), (3, 2, 0.0), (-1, 1, 2.0), (1, -1, 0.5)],
)
@pytest.mark.parametrize("sizes", [(5, 9), (9, 5), (1, 4), (4, 1), (6, 6)])
def test_definition(left: int, right: int, softcap: float, sizes: tuple[int, int]) -> None:
    q, k, v = _drawn(2, 4, 2, *sizes)
    scoring = Scoring(scale=0.7, left=left, right=right, softcap=softcap)
    for result, expected in zip(reference(q, k, v, scoring), _spelled_out(q, k, v, scoring), strict=True):
        torch.testing.assert_close(result, expected, rtol=1e-12, atol=1e-12)


_FEATURES = ["alibi", "bias", "sink", "dropout", "alibi bias sink dropout"]


@pytest.mark.parametrize("words", _FEATURES)
@pytest.mark.parametrize("sizes", [(4, 7), (7, 4)])
def test_definition_of_features(words: str, sizes: tuple[int, int]) -> None:
    q, k, v = _drawn(2, 4, 2, *sizes)
    features, scoring = _features(words, 2, 4, *sizes), Scoring(scale=0.7, left=4, right=0, softcap=3.0)
    found, expected = (f(q, k, v, scoring, features) for f in (reference, _spelled_out))
    for result, spelled_out in zip(found, expected, strict=True):
        torch.testing.assert_close(result, spelled_out, rtol=1e-12, atol=1e-12)


def _incoming(out: torch.Tensor, lse: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    return torch.randn(out.shape, generator=generator), torch.randn(lse.shape, generator=generator)


@pytest.mark.parametrize("words", ["", *_FEATURES])
@pytest.mark.parametrize("sizes", [(4, 7), (7, 4)])
def test_gradients_are_differences(words: str, sizes: tuple[int, int]) -> None:
    """Of a loss that weighs out and lse; a query that sees no key weighs nothing."""
    q, k, v = (x.double() for x in _drawn(1, 4, 2, *sizes))
    features, scoring = _features(words, 1, 4, *sizes), Scoring(scale=0.7, right=0, softcap=3.0)
    dout, dlse = _incoming(*reference(q, k, v, scoring))
    gradients = reference_gradients(q, k, v, dout, scoring, features, dlse)
    moved = {"dq": q, "dk": k, "dv": v, "dbias": features.bias, "dsinks": features.sinks}
    assert set(gradients) == {name for name, x in moved.items() if x is not None}

    def loss() -> float:
        out, lse = reference(q, k, v, scoring, features)
        return float((out * dout).sum() + (lse * dlse).masked_fill(lse == -math.inf, 0.0).sum())

    for name, gradient in gradients.items():
        flat = moved[name].view(-1)  # type: ignore[union-attr]
        for place in range(0, flat.numel(), 5):
            before, losses = float(flat[place]), []
            for step in (1e-5, -1e-5):
                flat[place] = before + step
                losses.append(loss())
            flat[place] = before
            assert float(gradient.reshape(-1)[place]) == pytest.approx((losses[0] - losses[1]) / 2e-5, abs=1e-8)


@pytest.mark.parametrize("words", ["", *_FEATURES])
def test_gradients_are_those_of_the_formulas(words: str) -> None:
    """dS = P * (dP - delta), as kernels compute it from out and lse."""
    q, k, v = _drawn(2, 4, 2, 9, 6)
    features, scoring = _features(words, 2, 4, 9, 6), Scoring(scale=0.7, left=3, right=0, softcap=3.0)
    dout, dlse = _incoming(*reference(q, k, v, scoring))
    expected = reference_gradients(q, k, v, dout, scoring, features, dlse)
    found = fused_backward(q, k, v, dout, scoring, features, dlse)
    assert set(found) == set(expected)
    for name, gradient in found.items():
        torch.testing.assert_close(gradient.double(), expected[name], rtol=2e-4, atol=2e-6)


def test_gradient_of_a_bias_has_its_shape() -> None:
    q, k, v = _drawn(2, 4, 2, 3, 5)
    whole = _features("bias", 2, 4, 3, 5)
    assert whole.bias is not None
    shared = whole.bias[:1, :, :1]
    scoring, dout = Scoring(scale=1.0), torch.ones(2, 4, 3, 6)
    found = reference_gradients(q, k, v, dout, scoring, Features(bias=shared))["dbias"]
    spread = reference_gradients(q, k, v, dout, scoring, Features(bias=shared.expand(2, 4, 3, 5).clone()))["dbias"]
    torch.testing.assert_close(found, spread.sum((0, 2), keepdim=True))


def test_agrees_with_torch() -> None:
    q, k, v = (x.double() for x in _drawn(2, 3, 3, 7, 7))
    out, _ = reference(q, k, v, Scoring(scale=0.3, right=0))
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=0.3, is_causal=True)
    torch.testing.assert_close(out, expected, rtol=1e-12, atol=1e-12)


def test_row_that_sees_nothing() -> None:
    q, k, v = _drawn(1, 1, 1, 5, 2)
    for attention in (reference, standard):
        out, lse = attention(q, k, v, Scoring(scale=1.0, right=0))
        assert (out[0, 0, :3] == 0).all()
        assert (lse[0, 0, :3] == -math.inf).all()
        assert out.isfinite().all()
        assert lse[0, 0, 3:].isfinite().all()


@pytest.mark.parametrize("hidden_by", ["mask", "bias"])
def test_row_that_sees_nothing_has_no_gradients(hidden_by: str) -> None:
    q, k, v = _drawn(1, 1, 1, 5, 2)
    bias = torch.zeros(1, 1, 5, 2).index_fill(2, torch.arange(3), -math.inf)
    scoring, features = Scoring(scale=1.0, right=0), PLAIN
    if hidden_by == "bias":
        scoring, features = Scoring(scale=1.0), Features(bias=bias)
    out, lse = reference(q, k, v, scoring, features)
    assert (out[0, 0, :3] == 0).all()
    assert (lse[0, 0, :3] == -math.inf).all()
    dout, dlse = _incoming(out, lse)
    for gradients in (reference_gradients, standard_gradients):
        found = gradients(q, k, v, dout, scoring, features, dlse)
        assert all(gradient.isfinite().all() for gradient in found.values())
        assert (found["dq"][0, 0, :3] == 0).all()
        assert (found["dq"][0, 0, 3:] != 0).any()
        of_seeing_rows = gradients(q[:, :, 3:], k, v, dout[:, :, 3:], scoring, PLAIN, dlse[:, :, 3:])
        torch.testing.assert_close(found["dv"], of_seeing_rows["dv"])
        torch.testing.assert_close(found["dk"], of_seeing_rows["dk"])


def test_row_that_sees_its_sink_alone() -> None:
    q, k, v = _drawn(1, 2, 1, 5, 2)
    features = Features(sinks=torch.tensor([0.5, -3.0]))
    out, lse = reference(q, k, v, Scoring(scale=1.0, right=0), features)
    assert (out[0, :, :3] == 0).all()
    assert lse[0, :, :3].tolist() == [[0.5] * 3, [-3.0] * 3]


@pytest.mark.parametrize("sizes", [(3, 0), (0, 3)])
def test_nothing_gives_no_gradients(sizes: tuple[int, int]) -> None:
    q, k, v = _drawn(1, 2, 2, *sizes)
    dout, dlse = _incoming(*reference(q, k, v, Scoring(scale=1.0)))
    found = reference_gradients(q, k, v, dout, Scoring(scale=1.0), PLAIN, dlse)
    assert [found[name].shape for name in ("dq", "dk", "dv")] == [q.shape, k.shape, v.shape]
    assert all((gradient == 0).all() for gradient in found.values())


def test_bias_below_all_numbers_of_the_dtype_hides_nothing() -> None:
    q, k, v = _drawn(1, 1, 1, 2, 8)
    least = torch.full((1, 1, 2, 8), torch.finfo(torch.float32).min)
    out, _ = reference(q, k, v, Scoring(scale=1.0), Features(bias=least))
    torch.testing.assert_close(out[0, 0, 0], v[0, 0].double().mean(0))


def test_no_keys() -> None:
    q, k, v = _drawn(1, 2, 2, 3, 0)
    out, lse = reference(q, k, v, Scoring(scale=1.0))
    assert (out == 0).all()
    assert (lse == -math.inf).all()


def test_float64_whatever_comes_in() -> None:
    q, k, v = (x.bfloat16() for x in _drawn(1, 2, 1, 3, 4))
    assert {x.dtype for x in reference(q, k, v, Scoring(scale=1.0))} == {torch.float64}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_standard_rounds_to_its_dtype(dtype: torch.dtype) -> None:
    q, k, v = (x.to(dtype) for x in _drawn(1, 2, 1, 30, 40))
    out, lse = standard(q, k, v, Scoring(scale=0.5))
    assert out.dtype is dtype
    assert lse.dtype is torch.float32
    error = (out.double() - reference(q, k, v, Scoring(scale=0.5))[0]).abs().max().item()
    assert 0.01 * torch.finfo(dtype).eps < error < 20 * torch.finfo(dtype).eps


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_standard_gradients_round_to_their_dtype(dtype: torch.dtype) -> None:
    q, k, v = (x.to(dtype) for x in _drawn(1, 2, 1, 30, 40))
    scoring, dout = Scoring(scale=0.5), torch.randn(1, 2, 30, 6, generator=torch.Generator().manual_seed(8)).to(dtype)
    found, expected = (f(q, k, v, dout, scoring) for f in (standard_gradients, reference_gradients))
    for name, gradient in found.items():
        assert gradient.dtype is dtype
        error = (gradient.double() - expected[name]).abs().max().item() / expected[name].abs().max().item()
        assert 0.01 * torch.finfo(dtype).eps < error < 20 * torch.finfo(dtype).eps


def test_standard_leaves_the_process_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    try:
        matmul.fp32_precision = "tf32"
        during: list[str] = []
        monkeypatch.setattr("flashgen.verify.reference._attention", lambda *_: during.append(matmul.fp32_precision))
        standard(*_drawn(1, 1, 1, 2, 2), Scoring(scale=1.0))
        assert during == ["ieee"]
        assert matmul.fp32_precision == "tf32"
    finally:
        matmul.fp32_precision = before
