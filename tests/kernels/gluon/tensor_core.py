"""How Hopper's tensor cores add up products of e4m3, as far as it is known: DeepSeek-V3 (arXiv 2412.19437, section
3.5.2); MMA-Sim (arXiv 2511.10909) models the same."""

from __future__ import annotations

import torch

STEP = 32  # products that are added at once
FRACTION = 13  # bits below the largest exponent of a step's terms, or of a sum, that are kept


def short_sum(a: torch.Tensor, b: torch.Tensor, total: torch.Tensor | None = None) -> torch.Tensor:
    """total + a @ b, of a [..., M, K] and b [..., K, N] in e4m3 and total [..., M, N] in fp32, which is fp32, too.

    A step's products and the sum so far are aligned by their largest exponent and cut off, then added, and the sum is
    cut off to 14 bits. A product's exponent is the sum of its factors', so that it may be 1 below its own.
    """
    total = torch.zeros(*a.shape[:-1], b.shape[-1]) if total is None else total.float()
    for rows, columns in zip(a.float().split(STEP, -1), b.float().split(STEP, -2), strict=True):
        powers = (_power_of_two(rows)[..., None] * _power_of_two(columns)[..., None, :, :]).amax(-2)
        bit = torch.maximum(powers, _power_of_two(total)).clamp(min=2.0**-60) * 2.0**-FRACTION
        products = rows[..., None] * columns[..., None, :, :]
        terms = products.div_(bit[..., None, :]).trunc_().sum(-2) + (total / bit).trunc()
        total = (terms * bit).view(torch.int32).bitwise_and(-1 << (23 - FRACTION)).view(torch.float32)
    return total


def _power_of_two(x: torch.Tensor) -> torch.Tensor:
    """The sign and the fraction of a float are its first bit and its last 23."""
    return x.contiguous().view(torch.int32).bitwise_and(0x7F800000).view(torch.float32)
