"""The tensors of one probe: what a kernel reads and what it writes, and whether it kept to them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flashgen.verify.layouts import Guarded, bits
from flashgen.verify.reference import Features, Scoring

if TYPE_CHECKING:
    import torch

DESCALES = ("q_descale", "k_descale", "v_descale")  # what inputs in fp8 have: [Z, Hq], [Z, Hk], [Z, Hk]


@dataclass(frozen=True, kw_only=True, slots=True)
class Tensors:
    """What a kernel reads and writes, by the names that the module's functions use, each in its guard bands.

    q, out, dout, dq ... are [Z, H, S, D], lse and dlse [Z, Hq, Sq], alibi_slopes [Z, Hq], sinks and dsinks [Hq], the
    bias has length 1 where it broadcasts, dbias in batch and heads only.
    """

    inputs: dict[str, Guarded]
    outputs: dict[str, Guarded]
    drawn: dict[str, torch.Tensor]  # the inputs' bits as drawn
    scoring: Scoring
    features: Features
    first_seen_key: int

    def view(self, name: str) -> torch.Tensor | None:
        """An input or an output; None for what this probe does not have."""
        found = self.inputs.get(name) or self.outputs.get(name)
        return None if found is None else found.view

    def poison(self) -> None:
        """Fills the outputs with NaN."""
        for output in self.outputs.values():
            output.view.fill_(math.nan)

    def results(self) -> dict[str, torch.Tensor]:
        """Copies of the outputs."""
        return {name: output.view.clone() for name, output in self.outputs.items()}

    def seen(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """q, k and v, with zeros for the keys that no query sees."""
        return seen_keys(self.inputs, self.first_seen_key)

    def damage(self) -> str | None:
        """What a kernel wrote that it must not write, or None."""
        import torch

        for name, drawn in self.drawn.items():
            if not torch.equal(drawn, bits(kept(self.inputs[name]))):
                return f"wrote to {name} or next to it"
        for name, output in self.outputs.items():
            if not output.intact():
                return f"wrote outside {name}"
        return None


def seen_keys(inputs: dict[str, Guarded], first: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q, k and v, where keys before `first` are zero."""
    q, k, v = (inputs[name].view for name in "qkv")
    if first == 0:
        return q, k, v
    k, v = k.clone(), v.clone()
    for x in (k, v):
        x[:, :, :first] = 0.0
    return q, k, v


def kept(tensor: Guarded) -> torch.Tensor:
    """What of an input a kernel must leave as it is: the whole buffer, or the view alone where that is too large."""
    return tensor.view.contiguous() if tensor.sentinel is None else tensor.buffer
