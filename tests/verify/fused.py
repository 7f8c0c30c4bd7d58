"""What an exact kernel computes, rounding included, in torch: an online softmax over blocks of keys, and its gradients
from probabilities that are recomputed of the lse."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from flashgen.verify.reference import PLAIN, Features, Gradients, Scoring, reference

LOG2E = math.log2(math.e)
Rounding = Callable[[torch.Tensor], torch.Tensor]


def tf32(x: torch.Tensor) -> torch.Tensor:
    """x in fp32, rounded to the 10 bits of a TF32 operand."""
    return ((x.float().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


def fused(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scoring: Scoring,
    *,
    operand: Rounding = torch.Tensor.float,
    p_dtype: torch.dtype | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(out, lse) of a full or causal mask: dots of `operand`-rounded tiles summed in fp32, p rounded to `p_dtype`."""
    block, diagonal, scale = 32, k.shape[2] - q.shape[2], scoring.scale * math.log2(math.e)
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    rows = torch.arange(q.shape[2])[:, None]
    m_i, l_i = torch.full(q.shape[:3], -math.inf), torch.zeros(q.shape[:3])
    acc = torch.zeros(*q.shape[:3], v.shape[-1])
    for start in range(0, k.shape[2], block):
        columns = torch.arange(start, min(start + block, k.shape[2]))
        qk = operand(q) @ operand(k[:, :, columns]).transpose(-1, -2)
        if scoring.right == 0:
            qk = qk.masked_fill(columns > rows + diagonal, -math.inf)
        m_ij = torch.maximum(m_i, qk.amax(-1))
        p = torch.exp2((qk - m_ij[..., None]) * scale)
        alpha = torch.exp2((m_i - m_ij) * scale)
        l_i = l_i * alpha + p.sum(-1)
        acc = acc * alpha[..., None] + operand(p.to(p_dtype or q.dtype)) @ operand(v[:, :, columns])
        m_i = m_ij
    return (acc / l_i[..., None]).to(q.dtype), (m_i * scale + torch.log2(l_i)) * math.log(2.0)


def fused_backward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dout: torch.Tensor,
    scoring: Scoring,
    features: Features = PLAIN,
    dlse: torch.Tensor | None = None,
    *,
    out: torch.Tensor | None = None,
    lse: torch.Tensor | None = None,
    operand: Rounding = torch.Tensor.float,
    p_dtype: torch.dtype | None = None,
) -> Gradients:
    """The gradients that a kernel gets from the rounded out and lse: probabilities recomputed in fp32, dots of
    `operand`-rounded factors summed in fp32, p and ds rounded to `p_dtype` before they are factors."""
    if out is None or lse is None:
        out, lse = reference(q, k, v, scoring, features)
    out, lse = out.to(q.dtype).float(), lse.float()
    group, heads_k = q.shape[1] // k.shape[1], k.shape[1]
    keys, values, queries = (operand(x) for x in (k.repeat_interleave(group, 1), v.repeat_interleave(group, 1), q))
    gradient = operand(dout)

    def factor(x: torch.Tensor) -> torch.Tensor:
        return operand(x.to(p_dtype or q.dtype))

    scores, hidden, derivative = _scores(queries @ keys.transpose(-1, -2), scoring, features)
    p = torch.exp2(scores * LOG2E - lse.masked_fill(lse == -math.inf, math.inf)[..., None] * LOG2E)
    p = p.masked_fill(hidden, 0.0)
    kept = torch.ones_like(p) if features.keep is None else features.keep / (1.0 - features.dropout_p)
    delta = (out * dout.float()).sum(-1) - (0.0 if dlse is None else dlse)
    ds = p * ((gradient @ values.transpose(-1, -2)) * kept - delta[..., None])
    found = {"dbias": ds} if features.bias is not None else {}
    ds = factor(ds * derivative)
    found |= {
        "dq": (ds @ keys * scoring.scale).to(q.dtype),
        "dk": _summed(ds.transpose(-1, -2) @ queries * scoring.scale, heads_k).to(q.dtype),
        "dv": _summed(factor(p * kept).transpose(-1, -2) @ gradient, heads_k).to(q.dtype),
    }
    if features.bias is not None:
        found["dbias"] = found["dbias"].sum_to_size(*features.bias.shape[:2], *ds.shape[2:])
    if features.sinks is not None:
        found["dsinks"] = -(torch.exp(features.sinks[:, None] - lse) * delta).sum((0, 2))
    return found


def _scores(
    qk: torch.Tensor, scoring: Scoring, features: Features
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | float]:
    """(scores, hidden, the cap's derivative) in fp32."""
    scores, derivative = qk * scoring.scale, 1.0
    if scoring.softcap:
        capped = torch.tanh(scores / scoring.softcap)
        scores, derivative = capped * scoring.softcap, 1.0 - capped * capped  # type: ignore[assignment]
    seqlen_q, seqlen_k = qk.shape[2:]
    ahead = torch.arange(seqlen_k)[None, :] - (torch.arange(seqlen_q)[:, None] + seqlen_k - seqlen_q)
    if features.alibi_slopes is not None:
        scores = scores - features.alibi_slopes[..., None, None] * ahead.abs()
    if features.bias is not None:
        scores = scores + features.bias.float()
    low, high = (math.inf if bound < 0 else bound for bound in (scoring.left, scoring.right))
    return scores, (ahead < -low) | (ahead > high), derivative


def _summed(x: torch.Tensor, heads_k: int) -> torch.Tensor:
    """[Z, Hq, S, D] summed over the query heads of each kv head."""
    return x.unflatten(1, (heads_k, -1)).sum(2)
