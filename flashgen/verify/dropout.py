"""Whether a dropout mask drops as many pairs as it should: a rule and a mask that agree may still both drop nothing."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_DEVIATIONS = 6.0  # of the binomial distribution: one mask in a billion strays further


def unfairness(keep: torch.Tensor, dropout_p: float) -> str | None:
    """What is wrong with the share of pairs that `keep` keeps, or None."""
    pairs = keep.numel()
    due, kept = (1.0 - dropout_p) * pairs, int(keep.sum())
    if abs(kept - due) <= _DEVIATIONS * math.sqrt(due * dropout_p) + 1.0:
        return None
    return f"dropout_mask keeps {kept} of {pairs} pairs where {due:.0f} are due"
