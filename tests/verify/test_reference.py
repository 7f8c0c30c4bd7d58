"""The reference against a loop that spells out the definition, and against torch."""

from __future__ import annotations

import math

import pytest
import torch

from flashgen.verify.reference import Scoring, reference, standard


def _drawn(
    batch: int, heads_q: int, heads_k: int, seqlen_q: int, seqlen_k: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    shapes = ((heads_q, seqlen_q, 8), (heads_k, seqlen_k, 8), (heads_k, seqlen_k, 6))
    q, k, v = (torch.randn(batch, *shape, generator=generator) for shape in shapes)
    return q, k, v


def _spelled_out(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scoring: Scoring
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
                        scores[j] = cap * math.tanh(score / cap) if cap else score
                if scores:
                    lse[z, h, i] = math.log(sum(math.exp(score) for score in scores.values()))
                for j, score in scores.items():
                    out[z, h, i] += math.exp(score - float(lse[z, h, i])) * v[z, kv_head, j].double()
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
