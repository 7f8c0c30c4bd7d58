"""How large the terms are that a result sums: what its rounding is measured by where the sum itself may be small.

A row of dS sums to zero, so where all of a query's keys have much the same value its dQ is next to nothing, and that of
a query with a single key is nothing, while the terms are rounded for what they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flashgen.verify.reference import PLAIN, Features, Gradients, Scoring, dropped, group_size, softmax

if TYPE_CHECKING:
    import torch


def gradient_magnitudes(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dout: torch.Tensor,
    scoring: Scoring,
    features: Features = PLAIN,
    dlse: torch.Tensor | None = None,
) -> Gradients:
    """For each element of dq, dk, dv, dbias and dsinks, in float64, the size that its sum would have if its terms had
    random signs: the root of the sum of their squares.

    out, and P and dS as factors, are in q's dtype: what lies below its normal numbers is rounded as the least of these
    is. The cap's derivative counts as 1: near saturation it is itself a difference, of terms of size 1.
    """
    import torch

    least = torch.finfo(q.dtype).smallest_normal ** 2
    q, k, v, dout = (x.double() for x in (q, k, v, dout))
    group = group_size(q, k)
    keys, values = (x.repeat_interleave(group, 1) for x in (k, v))
    p, lse = softmax(q, k, scoring, features)
    kept = dropped(torch.ones_like(p), features)
    # dS = P * (dP - delta + dlse). Rounding of dP is each pair's own; that of delta, which out brings, is a row's.
    delta = ((p * kept @ values).square().clamp(min=least) * dout.square()).sum(-1, keepdim=True)
    ds = kept.square() * (dout.square() @ values.square().transpose(-1, -2)) + delta
    ds = p.square() * (ds if dlse is None else ds + dlse.double().square()[..., None])
    squares = {"dbias": ds.sum_to_size(features.bias.shape)} if features.bias is not None else {}
    p_kept, ds = (torch.where(p > 0, x.clamp(min=least), 0.0) for x in ((p * kept).square(), ds))
    squares |= {
        "dq": scoring.scale**2 * (ds @ keys.square() + delta * (p @ keys).square()),
        "dk": scoring.scale**2 * _of_kv_heads(ds.transpose(-1, -2) @ q.square(), group),
        "dv": _of_kv_heads(p_kept.transpose(-1, -2) @ dout.square(), group),
    }
    if features.sinks is not None:
        sink = (features.sinks.double()[:, None] - lse).exp()
        squares["dsinks"] = (sink.square() * delta[..., 0]).sum((0, 2))
    return {name: square.sqrt() for name, square in squares.items()}


def output_magnitude(q: torch.Tensor, v: torch.Tensor, features: Features) -> torch.Tensor | float:
    """For the elements of out, broadcast to them: 0, but where a sink or what dropout takes may be all that a row's
    probabilities amount to. Those left are factors in q's dtype, whose rounding ends with its normal numbers.
    """
    import torch

    if features.keep is None and features.sinks is None:
        return 0.0
    size = v.double().square().sum(2, keepdim=True).sqrt().repeat_interleave(group_size(q, v), 1)
    return torch.finfo(q.dtype).smallest_normal / (1.0 - features.dropout_p) * size


def _of_kv_heads(x: torch.Tensor, group: int) -> torch.Tensor:
    """[Z, Hq, S, D] summed over the query heads of each kv head."""
    return x.reshape(x.shape[0], x.shape[1] // group, group, *x.shape[2:]).sum(2)
