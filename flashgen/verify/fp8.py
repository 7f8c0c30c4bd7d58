"""What attention in fp8 must be: off by what e4m3 explains, and no more. It is never exact as in 16 bits.

The reference is float64 attention of what q, k and v stand for, their elements times the heads' descale factors: that
they were rounded to e4m3 before is no error of the kernel's. What is left to it, with P a row's probabilities divided
by the largest:
    P is multiplied in e4m3, as 2^8 P, which fits its 448. That loses half an eps, 2^-4, of each p; below the least
    normal number, 2^-6 / 2^8 = 2^-14, as much as of that.
    Hopper's tensor cores add 32 products in e4m3 to a sum in one step, for which they align all 33 by the largest
    exponent and cut off what lies beyond 14 bits of it (DeepSeek-V3, arXiv 2412.19437, section 3.5.2). What they cut
    off of the products can be told, and of the sum, before the step and after it, no more than the last bit each. A
    score may be off by all of that, t, as if it were of one sign; its p is off by exp(t) - 1 of itself.
    The output is such a sum over the keys. Of 4096 that weigh alike, each is less than what is cut off of their sum,
    so that a sum over all of them would stand still; one of 128, 4 steps, loses up to 4 * 33 * 2^-14 of itself, little
    beside 2^-4. More is no rounding: the sums of blocks must be added in fp32.
    The output is bf16, whose 2^-9 is little beside that.
So out may be off by 2^-4 + 4 * 33 * 2^-14 of the size of its terms, were their signs random: the root of sum_j
(p_j v_j)^2, p_j with its share of t, or of itself where it is larger. As for every dtype, the largest error may be that
and twice the error of standard attention, here in fp32 with P rounded to e4m3; each row's may be 1.5 times that. lse,
which the rounding of P does not touch, may be off by what fp32 explains and by the mean of t.

Scores in the thousands have t above 1: what their kernel answers is bounded, but says little.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from flashgen.verify.criterion import ROUNDING_EPS, STANDARD_FACTOR
from flashgen.verify.expected import Expected
from flashgen.verify.reference import PLAIN, Scoring, group_size, reference, softmax, standard

if TYPE_CHECKING:
    import torch

P_SCALE = 2.0**8
STEP = 32
LAST_BIT = 2.0**-13  # of 14
BLOCK_LOSS = 4 * (STEP + 1) * LAST_BIT / 2  # of the sum over a block of 128 keys: half a bit a term, on average


def expected_fp8(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, descales: tuple[torch.Tensor, ...], scoring: Scoring
) -> dict[str, Expected]:
    """out [Z, Hq, Sq, Dv] and lse [Z, Hq, Sq], of q, k, v in e4m3 and their descales [Z, Hq], [Z, Hk], [Z, Hk]."""
    import torch

    cut = scoring.scale * _cut_off(q.float(), k.float().repeat_interleave(group_size(q, k), 1))
    q, k, v = (x.double() * descale[:, :, None, None] for x, descale in zip((q, k, v), descales, strict=True))
    out, lse = reference(q, k, v, scoring)
    p, t = softmax(q, k, scoring, PLAIN)[0], cut * _a_query_head(descales)
    rounding = ROUNDING_EPS["float8_e4m3fn"] * torch.finfo(torch.float8_e4m3fn).eps
    size = torch.maximum(out.abs(), _terms(p * (1.0 + t.expm1() / rounding), p, v))
    size = size * (1.0 + BLOCK_LOSS / rounding)
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


def _a_query_head(descales: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """The factor of a query head's scores, [Z, Hq, 1, 1]."""
    q, k, _ = (descale.double() for descale in descales)
    return (q * k.repeat_interleave(group_size(q, k), 1))[:, :, None, None]


def _cut_off(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """What the tensor cores cut off of q k^T, [Z, Hq, Sq, Sk], at most."""
    import torch

    total = lost = q.new_zeros(*q.shape[:3], k.shape[2])
    for rows, columns in zip(torch.split(q, STEP, -1), torch.split(k, STEP, -1), strict=True):
        largest = _power_of_two(total)
        for power in _products(_power_of_two(rows), _power_of_two(columns)):
            torch.maximum(largest, power, out=largest)
        bits, bit = torch.ones_like(total), LAST_BIT * largest.clamp(min=LAST_BIT)
        for product in _products(rows, columns):
            bits += product.div_(bit).frac_().abs_()
        total = total + rows @ columns.transpose(-1, -2)
        lost = lost + bits * bit + LAST_BIT * total.abs()
    return lost


def _products(q: torch.Tensor, k: torch.Tensor) -> Iterator[torch.Tensor]:
    """[Z, Hq, Sq, Sk] of each column."""
    return (x[..., :, None] * y[..., None, :] for x, y in zip(q.unbind(-1), k.unbind(-1), strict=True))


def _power_of_two(x: torch.Tensor) -> torch.Tensor:
    """The one that |x| reaches; 0 of 0."""
    import torch

    return torch.where(x == 0.0, 0.0, torch.ldexp(torch.ones_like(x), x.frexp().exponent - 1))


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
