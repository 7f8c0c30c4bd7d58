"""Whose answer is wrong: contenders are compared with each other before any of them is timed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    Answer = Mapping[str, torch.Tensor]

AGREE = 0.02  # relative Frobenius distance between two right answers in 16-bit
AGREE_FP8 = 2.0**-4  # and where one is in e4m3, by its criterion


def faults(answers: Mapping[str, Answer], dropout_p: float = 0.0, agree: float = AGREE) -> dict[str, str]:
    """What is wrong with whose answer; empty where all agree.

    The yardstick is the answer that most others agree with, the first one if several are. Two that drop independently
    with probability p differ by sqrt(2p) of the norm, so with dropout that distance is agreement.
    """
    names, expected = list(answers), math.sqrt(2 * dropout_p)
    found = {(a, b): _fault(answers[a], answers[b], expected, agree) for a in names for b in names}
    yardstick = max(names, key=lambda b: sum(not found[a, b] for a in names), default="")
    return {a: f"{found[a, yardstick]} {yardstick}'s" for a in names if a != yardstick and found[a, yardstick]}


def _fault(answer: Answer, other: Answer, expected: float, agree: float) -> str:
    """The first tensor that is not where it should be, in words; empty if there is none."""
    for name, x in answer.items():
        distance = float((x.float() - other[name].float()).norm() / other[name].float().norm())
        if not abs(distance - expected) < agree:  # NaN is a fault, too
            usual = f" (independent dropout: {expected:.3g})" if expected else ""
            return f"wrong answer: {name} is {distance:.3g} of the norm{usual} from"
    return ""
