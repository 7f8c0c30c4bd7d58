"""What the outputs of attention must be: references, yardsticks and allowances, by the outputs' names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from flashgen.verify.criterion import GRADIENT_FACTOR, STANDARD_FACTOR, Deviation, deviation
from flashgen.verify.magnitudes import gradient_magnitudes, output_magnitude
from flashgen.verify.reference import (
    PLAIN,
    Features,
    Scoring,
    reference,
    reference_gradients,
    standard,
    standard_gradients,
)

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True, slots=True)
class Expected:
    """One output as float64 has it and as standard attention in the kernel's dtype has it; see criterion.deviation."""

    reference: torch.Tensor
    standard: torch.Tensor
    unit: float | torch.Tensor
    factor: float
    dtype: torch.dtype

    def deviation_of(self, result: torch.Tensor) -> Deviation:
        return deviation(result, self.reference, self.standard, self.unit, factor=self.factor, dtype=self.dtype)


def expected_outputs(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scoring: Scoring, features: Features = PLAIN
) -> dict[str, Expected]:
    """out [Z, Hq, Sq, Dv] and lse [Z, Hq, Sq], in fp32."""
    expected, yardstick = (f(q, k, v, scoring, features) for f in (reference, standard))
    units = (output_magnitude(q, v, features), 1.0)
    return {
        name: Expected(reference=ref, standard=std, unit=unit, factor=STANDARD_FACTOR, dtype=std.dtype)
        for name, ref, std, unit in zip(("out", "lse"), expected, yardstick, units, strict=True)
    }


def expected_gradients(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dout: torch.Tensor,
    scoring: Scoring,
    features: Features = PLAIN,
    dlse: torch.Tensor | None = None,
) -> dict[str, Expected]:
    """dq, dk and dv, with a bias dbias and with sinks dsinks; see reference_gradients."""
    given = (q, k, v, dout, scoring, features, dlse)
    expected, yardstick, magnitudes = (
        reference_gradients(*given),
        standard_gradients(*given),
        gradient_magnitudes(*given),
    )
    return {
        name: Expected(
            reference=expected[name],
            standard=yardstick[name],
            unit=magnitudes[name],
            factor=GRADIENT_FACTOR,
            dtype=q.dtype,
        )
        for name in expected
    }
