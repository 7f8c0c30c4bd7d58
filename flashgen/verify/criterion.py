"""When a result counts as exact: its error against float64, over what rounding alone explains.

Two bounds, of which the stricter counts:
    largest error   max|x - ref| <= 2 * max|std - ref| + tiny, with std standard attention in the same dtype
                    (3 * for gradients)
    each row        norm(x - ref) <= 1.5 * rounding * norm(ref); std's error does not loosen this one

`tiny` is the rounding of the result's dtype at the magnitude of the reference, not a fixed number: a kernel that gets
outputs near 1e-6 wrong fails as one that gets outputs near 1 wrong. A sum whose terms cancel is rounded for what its
terms are, so gradients are measured by the magnitude of theirs where that is larger (magnitudes.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

STANDARD_FACTOR = 2.0
GRADIENT_FACTOR = 3.0
ROW_FACTOR = 1.5
# What an exact kernel may lose to rounding, in the dtype's eps. In 16 bits: half an eps each for p and for the result.
# In fp32 scores that are summed in another order, and exp2.approx, leave some tens of eps; TF32 would leave 4000. In
# e4m3 half an eps for p: the result is wider (fp8.py).
ROUNDING_EPS = {"float16": 1.0, "bfloat16": 1.0, "float32": 256.0, "float8_e4m3fn": 0.5}
# ex2.approx.ftz gives 0 below 2^-126, and dropout may leave a row nothing larger: what 2^16 such terms amount to.
FLUSHED = 2.0**-110
# In narrower rows the terms of every element may cancel at once, so that the row's norm says nothing.
MIN_ROW = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Deviation:
    """How far a result is from the reference. `ratio` is error over allowed: exact up to 1."""

    ratio: float
    error: float
    allowed: float
    measure: str  # what was compared: `largest error`, `row error`, or what makes numbers meaningless

    def __str__(self) -> str:
        if math.isinf(self.ratio):
            return self.measure
        return f"{self.measure} {self.error:.2e} is {self.ratio:.2f}x the {self.allowed:.2e} that rounding explains"


def error_ratio(result: torch.Tensor, reference: torch.Tensor, standard: torch.Tensor, unit: float = 0.0) -> float:
    """Error over allowance, exact up to 1; see `deviation`."""
    return deviation(result, reference, standard, unit).ratio


def deviation(
    result: torch.Tensor,
    reference: torch.Tensor,
    standard: torch.Tensor,
    unit: float | torch.Tensor = 0.0,
    *,
    factor: float = STANDARD_FACTOR,
    dtype: torch.dtype | None = None,
) -> Deviation:
    """How far `result` is from `reference` (float64), where `standard` is standard attention in the kernel's dtype.

    `unit` is the magnitude below which errors count as absolute: 0 for outputs; 1 for lse, whose error is the
    relative error of every probability; for gradients that of their terms, element by element. `factor` is what the
    largest error may be of standard attention's; `dtype` the kernel's, where the result is wider.

    Raises:
        ValueError: a reference that is not float64, or shapes that differ.
    """
    import torch

    if reference.dtype != torch.float64:
        raise ValueError(f"the reference is {reference.dtype}; a reference that rounds proves nothing: use float64")
    if not result.shape == reference.shape == standard.shape:
        shapes = f"{tuple(result.shape)}, {tuple(reference.shape)}, {tuple(standard.shape)}"
        raise ValueError(f"result, reference and standard have shapes {shapes}; they must be equal")
    if result.numel() == 0:
        return Deviation(ratio=0.0, error=0.0, allowed=0.0, measure="largest error")
    if (difference := _special_values(result, reference)) is not None:
        return Deviation(ratio=math.inf, error=math.inf, allowed=0.0, measure=difference)
    finite = reference.isfinite()
    error = torch.where(finite, result.double() - reference, 0.0)
    expected = torch.where(finite, reference, 0.0)
    size = torch.maximum(expected.abs(), torch.as_tensor(unit, dtype=torch.float64, device=expected.device))
    rounding = _rounding(dtype or result.dtype)
    return max(
        _largest_error(error, size, rounding, factor * _finite_error(standard, reference)),
        _row_error(error, size, rounding),
        key=lambda found: found.ratio,
    )


def _special_values(result: torch.Tensor, reference: torch.Tensor) -> str | None:
    """Where NaN or an infinity stands in one of the two only; None if they agree."""
    import torch

    if wrong := int((result.isnan() != reference.isnan()).sum()):
        return f"{wrong} of {result.numel()} elements are NaN in one of result and reference only"
    infinite = reference.isinf()
    if wrong := int((result.isinf() != infinite).sum()):
        return f"{wrong} of {result.numel()} elements are infinite in one of result and reference only"
    if not torch.equal(result[infinite].double(), reference[infinite]):
        return "infinities have the wrong sign"
    return None


def _finite_error(standard: torch.Tensor, reference: torch.Tensor) -> float:
    """The largest error of standard attention where it did not overflow."""
    import torch

    error = standard.double() - reference
    return float(torch.where(error.isfinite(), error.abs(), 0.0).max())


def _rounding(dtype: torch.dtype) -> tuple[float, float]:
    """(relative, absolute): the rounding of an exact kernel's result, and what is too small to be held."""
    import torch

    info, held = torch.finfo(dtype), torch.finfo(torch.bfloat16 if dtype == torch.float8_e4m3fn else dtype)
    return ROUNDING_EPS[str(dtype).removeprefix("torch.")] * info.eps, max(held.eps * held.smallest_normal, FLUSHED)


def _largest_error(
    error: torch.Tensor, size: torch.Tensor, rounding: tuple[float, float], standard_error: float
) -> Deviation:
    relative, step = rounding
    worst, allowed = float(error.abs().max()), standard_error + relative * float(size.max()) + step
    return Deviation(ratio=worst / allowed, error=worst, allowed=allowed, measure="largest error")


def _row_error(error: torch.Tensor, size: torch.Tensor, rounding: tuple[float, float]) -> Deviation:
    """The relative Frobenius bound, held by every row (the last dim): a fault in one row must not drown in others."""
    relative, step = rounding
    width = size.shape[-1] if size.shape[-1] >= MIN_ROW else size.numel()
    errors, sizes = (x.reshape(-1, width).norm(dim=-1) for x in (error, size))
    allowed = ROW_FACTOR * relative * sizes + step * width**0.5
    worst = int((errors / allowed).argmax())
    return Deviation(
        ratio=float(errors[worst] / allowed[worst]),
        error=float(errors[worst]),
        allowed=float(allowed[worst]),
        measure="row error",
    )
