"""What an exact kernel computes, rounding included, in torch: an online softmax over blocks of keys."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from flashgen.verify.reference import Scoring

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
