"""What a kernel is compared with: attention in float64, and standard attention in the kernel's own dtype.

Both are one readable function, and their gradients are what torch.autograd makes of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Features:
    """What else changes scores or probabilities; None where it is not used.

    Between cap and mask, scores lose slope * |i + Sk - Sq - j| and gain the bias; where the bias is -inf, query i does
    not see key j. A sink is a key of its head that every query sees with this score, and that has no value. Dropout
    keeps probabilities where `keep` says so, divided by 1 - dropout_p.
    """

    alibi_slopes: torch.Tensor | None = None  # [Hq] or [Z, Hq]
    bias: torch.Tensor | None = None  # broadcasts to [Z, Hq, Sq, Sk]
    sinks: torch.Tensor | None = None  # [Hq]
    keep: torch.Tensor | None = None  # bool, [Z, Hq, Sq, Sk]
    dropout_p: float = 0.0


PLAIN = Features()
Gradients = dict[str, "torch.Tensor"]


def reference(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scoring: Scoring, features: Features = PLAIN
) -> tuple[torch.Tensor, torch.Tensor]:
    """(out [Z, Hq, Sq, Dv], lse [Z, Hq, Sq]) in float64, of q [Z, Hq, Sq, D], k [Z, Hk, Sk, D], v [Z, Hk, Sk, Dv].

    lse is the natural log; a query that sees no key has out 0 and lse -inf, or the sink.
    """
    return _attention(q.double(), k.double(), v.double(), scoring, features)


def standard(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scoring: Scoring, features: Features = PLAIN
) -> tuple[torch.Tensor, torch.Tensor]:
    """(out, lse) of attention that materialises scores and probabilities in q's dtype; lse in fp32.

    Its error is the yardstick of what rounding alone does. Scores that overflow the dtype give inf or NaN.
    """
    with _no_tf32():
        return _attention(q, k, v, scoring, features)


def reference_gradients(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dout: torch.Tensor,
    scoring: Scoring,
    features: Features = PLAIN,
    dlse: torch.Tensor | None = None,
) -> Gradients:
    """dq, dk and dv in float64, of the loss whose gradients are dout [Z, Hq, Sq, Dv] and dlse [Z, Hq, Sq] (None: 0).

    With a bias also dbias, of its own shape; with sinks dsinks. Nothing comes from a query that sees no key.
    """
    return _gradients(q.double(), k.double(), v.double(), dout, scoring, features, dlse)


def standard_gradients(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dout: torch.Tensor,
    scoring: Scoring,
    features: Features = PLAIN,
    dlse: torch.Tensor | None = None,
) -> Gradients:
    """The gradients that `standard` has: torch.autograd's in q's dtype, through materialised scores."""
    with _no_tf32():
        return _gradients(q, k, v, dout, scoring, features, dlse)


def _gradients(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dout: torch.Tensor,
    scoring: Scoring,
    features: Features,
    dlse: torch.Tensor | None,
) -> Gradients:
    import torch

    given = {"dq": q, "dk": k, "dv": v, "dbias": features.bias, "dsinks": features.sinks}
    leaves = {
        name: x.detach().to(torch.promote_types(x.dtype, q.dtype)).requires_grad_()
        for name, x in given.items()
        if x is not None
    }
    features = replace(features, bias=leaves.get("dbias"), sinks=leaves.get("dsinks"))
    with torch.enable_grad():
        out, lse = _attention(leaves["dq"], leaves["dk"], leaves["dv"], scoring, features)
    outputs, incoming = [out], [dout.to(out.dtype)]
    if dlse is not None:
        outputs, incoming = [out, lse], [*incoming, dlse.to(lse.dtype)]
    return dict(zip(leaves, torch.autograd.grad(outputs, list(leaves.values()), incoming), strict=True))


def _attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scoring: Scoring, features: Features
) -> tuple[torch.Tensor, torch.Tensor]:
    p, lse = softmax(q, k, scoring, features)
    return dropped(p, features) @ v.repeat_interleave(group_size(q, k), 1), lse


def softmax(
    q: torch.Tensor, k: torch.Tensor, scoring: Scoring, features: Features
) -> tuple[torch.Tensor, torch.Tensor]:
    """(p [Z, Hq, Sq, Sk] in q's dtype, lse [Z, Hq, Sq] in fp32 or float64), before dropout."""
    import torch

    scores, hidden = _scores(q, k, scoring, features)
    if features.sinks is not None:
        sinks = features.sinks.to(scores.dtype)[:, None, None].expand(*scores.shape[:-1], 1)
        scores = torch.cat([scores, sinks], -1)
        hidden = torch.nn.functional.pad(hidden, (0, 1), value=False)
    # Among nothing but -inf a softmax is NaN, and so is its gradient: a row that sees nothing gets other scores, whose
    # probabilities are then taken from it.
    blind = hidden.all(-1, keepdim=True)
    scores = scores.masked_fill(hidden, -math.inf).masked_fill(blind, 0.0)
    p = scores.softmax(-1).masked_fill(hidden, 0.0)
    lse = scores.to(torch.promote_types(q.dtype, torch.float32)).logsumexp(-1).masked_fill(blind[..., 0], -math.inf)
    return p[..., : k.shape[2]], lse


def dropped(p: torch.Tensor, features: Features) -> torch.Tensor:
    """The probabilities that dropout leaves, rescaled."""
    return p if features.keep is None else p * features.keep / (1.0 - features.dropout_p)


def group_size(q: torch.Tensor, k: torch.Tensor) -> int:
    """Query heads a kv head."""
    return q.shape[1] // max(k.shape[1], 1)


def _scores(
    q: torch.Tensor, k: torch.Tensor, scoring: Scoring, features: Features
) -> tuple[torch.Tensor, torch.Tensor]:
    """(scores [Z, Hq, Sq, Sk], hidden: what broadcasts to them, True where query i does not see key j)."""
    import torch

    scores = q @ k.repeat_interleave(group_size(q, k), 1).transpose(-1, -2) * scoring.scale
    if scoring.softcap:
        scores = scoring.softcap * torch.tanh(scores / scoring.softcap)
    ahead = _ahead(q.shape[2], k.shape[2], q.device)
    hidden = torch.zeros_like(ahead, dtype=torch.bool)
    if scoring.left >= 0:
        hidden = hidden | (ahead < -scoring.left)
    if scoring.right >= 0:
        hidden = hidden | (ahead > scoring.right)
    if features.alibi_slopes is not None:
        slopes = features.alibi_slopes.to(torch.promote_types(q.dtype, torch.float32))
        scores = scores - (slopes[..., None, None] * ahead.abs()).to(scores.dtype)
    if features.bias is not None:
        scores = scores + features.bias.to(scores.dtype)
        hidden = hidden | (features.bias == -math.inf)
    return scores, hidden


def _ahead(seqlen_q: int, seqlen_k: int, device: torch.device) -> torch.Tensor:
    """[Sq, Sk]: how far key j stands after the last one that query i sees under a causal mask."""
    import torch

    last = torch.arange(seqlen_q, device=device)[:, None] + seqlen_k - seqlen_q
    return torch.arange(seqlen_k, device=device)[None, :] - last


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
