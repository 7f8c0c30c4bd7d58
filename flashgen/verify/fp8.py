"""What attention in fp8 must be: off by what e4m3 explains, and no more. It is never exact as in 16 bits.

The reference is float64 attention of what q, k and v stand for, their elements times the heads' descale factors: that
they were rounded to e4m3 before is no error of the kernel's. What is left to it, with P a row's probabilities divided
by the largest:
    P is multiplied in e4m3, as 2^8 P, which fits its 448. That loses half an eps, 2^-4, of each p; below the least
    normal number, 2^-6 / 2^8 = 2^-14, as much as of that.
    Hopper's tensor cores add 32 products in e4m3 to a sum of 14 bits, and cut off what lies beyond (DeepSeek-V3, arXiv
    2412.19437, section 3.5.2): half of 2^-13 of the sum a step. A score may then be off by t, that often 2^-14 of
    sum_d |q_d k_d|, scaled as it is and counted twice at least, for the products that are cut, too; its p is off by
    exp(t) - 1 of itself. The output, a sum over the keys, loses as much a step of itself.
    The output is bf16, whose 2^-9 is little beside that.
So out may be off by 2^-4 of the size of its terms, were their signs random: the root of sum_j (p_j v_j)^2, p_j with its
share of t, or of itself where it is larger. As for every dtype, the largest error may be that and twice the error of
standard attention, here in fp32 with P rounded to e4m3; each row's may be 1.5 times 2^-4 of its size. lse, which the
rounding of P does not touch, may be off by what fp32 explains and by the mean of t.

Scores in the thousands have t above 1: what their kernel answers is bounded, but says little.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flashgen.verify.criterion import ROUNDING_EPS, STANDARD_FACTOR
from flashgen.verify.expected import Expected
from flashgen.verify.reference import PLAIN, Scoring, group_size, reference, softmax, standard

if TYPE_CHECKING:
    import torch

P_SCALE = 2.0**8
STEP_ROUNDING = 2.0**-14  # half of the last of 14 bits
STEP = 32


def expected_fp8(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, descales: tuple[torch.Tensor, ...], scoring: Scoring
) -> dict[str, Expected]:
    """out [Z, Hq, Sq, Dv] and lse [Z, Hq, Sq], of q, k, v in e4m3 and their descales [Z, Hq], [Z, Hk], [Z, Hk]."""
    import torch

    q, k, v = (x.double() * descale[:, :, None, None] for x, descale in zip((q, k, v), descales, strict=True))
    out, lse = reference(q, k, v, scoring)
    p, t = softmax(q, k, scoring, PLAIN)[0], _score_error(q, k, scoring)
    rounding = ROUNDING_EPS["float8_e4m3fn"] * torch.finfo(torch.float8_e4m3fn).eps
    size = torch.maximum(out.abs(), _terms(p * (1.0 + t.expm1() / rounding), p, v))
    size = size * (1.0 + v.shape[2] / STEP * STEP_ROUNDING / rounding)
    std_out, std_lse = _standard(q.float(), k.float(), v.float(), scoring)
    fp32 = ROUNDING_EPS["float32"] * torch.finfo(torch.float32).eps
    return {
        "out": Expected(reference=out, standard=std_out, unit=size, factor=STANDARD_FACTOR, dtype=torch.float8_e4m3fn),
        "lse": Expected(
            reference=lse,
            standard=std_lse,
            unit=1.0 + (p * t).sum(-1) / fp32,
            factor=STANDARD_FACTOR,
            dtype=torch.float32,
        ),
    }


def _score_error(q: torch.Tensor, k: torch.Tensor, scoring: Scoring) -> torch.Tensor:
    """t, [Z, Hq, Sq, Sk]."""
    keys = k.abs().repeat_interleave(group_size(q, k), 1)
    return STEP_ROUNDING * max(2.0, q.shape[3] / STEP) * scoring.scale * (q.abs() @ keys.transpose(-1, -2))


def _terms(weights: torch.Tensor, p: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """The root of the sum of the squares of weights_ij v_j; of keys that are seen, none weighs less than the least
    normal number of e4m3 does."""
    import torch

    least = torch.finfo(torch.float8_e4m3fn).smallest_normal / P_SCALE * _largest(p)
    weights = torch.where(p > 0.0, torch.maximum(weights, least), 0.0)
    values = v.repeat_interleave(p.shape[1] // max(v.shape[1], 1), 1)
    return (weights.square() @ values.square()).sqrt()


def _largest(p: torch.Tensor) -> torch.Tensor:
    """Of each row, [Z, Hq, Sq, 1]; 0 where there is no key."""
    import torch

    return torch.nn.functional.pad(p, (0, 1)).amax(-1, keepdim=True)


def _standard(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scoring: Scoring) -> tuple[torch.Tensor, torch.Tensor]:
    """Standard attention in fp32 whose probabilities are rounded to e4m3, and its output to bf16."""
    import torch

    _, lse = standard(q, k, v, scoring)
    p = softmax(q, k, scoring, PLAIN)[0]
    unit = _largest(p) / P_SCALE
    rounded = (p / unit.clamp(min=torch.finfo(p.dtype).tiny)).to(torch.float8_e4m3fn).float() * unit
    return (rounded @ v.repeat_interleave(group_size(q, k), 1)).bfloat16(), lse
