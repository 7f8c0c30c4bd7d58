"""What a kernel is compared with: attention in float64, and standard attention in the kernel's own dtype."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True, slots=True)
class Scoring:
    """How scores come of QK^T: scaled, capped (softcap 0: not), then masked.

    Query i sees key j iff i + Sk - Sq - left <= j <= i + Sk - Sq + right, inclusive; -1 is infinite.
    """

    scale: float
    left: int = -1
    right: int = -1
    softcap: float = 0.0


def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scoring: Scoring) -> tuple[torch.Tensor, torch.Tensor]:
    """(out [Z, Hq, Sq, Dv], lse [Z, Hq, Sq]) in float64, of q [Z, Hq, Sq, D], k [Z, Hk, Sk, D], v [Z, Hk, Sk, Dv].

    lse is the natural log; a query that sees no key has out 0 and lse -inf.
    """
    return _attention(q.double(), k.double(), v.double(), scoring)


def standard(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scoring: Scoring) -> tuple[torch.Tensor, torch.Tensor]:
    """(out, lse) of attention that materialises scores and probabilities in q's dtype; lse in fp32.

    Its error is the yardstick of what rounding alone does. Scores that overflow the dtype give inf or NaN.
    """
    with _no_tf32():
        return _attention(q, k, v, scoring)


def _attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scoring: Scoring
) -> tuple[torch.Tensor, torch.Tensor]:
    import torch

    group = q.shape[1] // max(k.shape[1], 1)
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = q @ k.transpose(-1, -2) * scoring.scale
    if scoring.softcap:
        scores = scoring.softcap * torch.tanh(scores / scoring.softcap)
    hidden = _hidden(q.shape[2], k.shape[2], scoring, q.device)
    scores = scores.masked_fill(hidden, -math.inf)
    lse = scores.to(torch.promote_types(q.dtype, torch.float32)).logsumexp(-1)
    # The softmax of a row that sees nothing is NaN.
    return scores.softmax(-1).masked_fill(hidden, 0.0) @ v, lse


def _hidden(seqlen_q: int, seqlen_k: int, scoring: Scoring, device: torch.device) -> torch.Tensor:
    """[Sq, Sk], True where query i does not see key j."""
    import torch

    i = torch.arange(seqlen_q, device=device)[:, None] + seqlen_k - seqlen_q
    j = torch.arange(seqlen_k, device=device)[None, :]
    hidden = torch.zeros(seqlen_q, seqlen_k, dtype=torch.bool, device=device)
    if scoring.left >= 0:
        hidden |= j < i - scoring.left
    if scoring.right >= 0:
        hidden |= j > i + scoring.right
    return hidden


@contextmanager
def _no_tf32() -> Iterator[None]:
    """fp32 matmuls in fp32, whatever the process or the environment says: a yardstick in TF32 would let TF32 pass."""
    import torch

    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    matmul.fp32_precision = "ieee"
    try:
        yield
    finally:
        matmul.fp32_precision = before
