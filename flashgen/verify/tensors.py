"""The tensors of one probe: inputs drawn with a seed, outputs poisoned, all inside guard bands.

All that a kernel may not use is NaN: what lies round the inputs, between their rows, and keys that no query sees.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flashgen.spec import AttentionSpec
from flashgen.verify.layouts import FAR_ELEMENTS, Guarded, Shape, bits, far, guarded, is_far
from flashgen.verify.probes import Fill, Layout, Probe

if TYPE_CHECKING:
    import torch

# Outputs are poisoned with NaN, so that what is not written shows; round them stands a number that no kernel computes.
_SENTINEL = -7168.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Tensors:
    """q, k, v, out as [Z, H, S, D] and lse as [Z, Hq, Sq, 1], each in its guard bands."""

    q: Guarded
    k: Guarded
    v: Guarded
    out: Guarded
    lse: Guarded
    inputs: tuple[torch.Tensor, ...]  # the bits of q, k and v as drawn
    first_seen_key: int

    def poison(self) -> None:
        """Fills the outputs with NaN."""
        self.out.view.fill_(math.nan)
        self.lse.view.fill_(math.nan)

    def seen(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """q, k and v without the keys that no query sees; the mask, aligned at the last key, stays as it is."""
        first = self.first_seen_key
        return self.q.view, self.k.view[:, :, first:], self.v.view[:, :, first:]

    def damage(self) -> str | None:
        """What a kernel wrote that it must not write, or None."""
        import torch

        for name, drawn in zip("qkv", self.inputs, strict=True):
            if not torch.equal(drawn, bits(_kept(getattr(self, name)))):
                return f"wrote to {name} or next to it"
        for name in ("out", "lse"):
            if not getattr(self, name).intact():
                return f"wrote outside {name}"
        return None


def lay_out(probe: Probe, spec: AttentionSpec, dtype: torch.dtype, device: torch.device, seed: int) -> Tensors | None:
    """The probe's tensors for `spec`'s head dims; None where the device's memory cannot hold them."""
    import torch

    batch, heads_q, heads_k, seqlen_q, seqlen_k = probe.shape
    shapes: dict[str, Shape] = {
        "q": (batch, heads_q, seqlen_q, spec.head_dim),
        "k": (batch, heads_k, seqlen_k, spec.head_dim),
        "v": (batch, heads_k, seqlen_k, spec.head_dim_v),
        "out": (batch, heads_q, seqlen_q, spec.head_dim_v),
    }
    try:
        placed = _place(probe.layout, shapes, dtype, device)
    except RuntimeError:
        if is_far(probe.layout):
            return None
        raise
    for name in "qkv":
        _fill(placed[name].view, getattr(probe, name), _generator(probe, name, seed))
    first = probe.first_seen_key(spec)
    for name in "kv":  # what the mask excludes must not matter, whatever it holds
        placed[name].view[:, :, :first].fill_(math.nan)
    placed["lse"] = guarded("bhsd", (batch, heads_q, seqlen_q, 1), torch.float32, device, _SENTINEL)
    inputs = tuple(bits(_kept(placed[name])).clone() for name in "qkv")
    return Tensors(**placed, inputs=inputs, first_seen_key=first)


def _place(layout: Layout, shapes: dict[str, Shape], dtype: torch.dtype, device: torch.device) -> dict[str, Guarded]:
    import torch

    if is_far(layout):
        buffer = torch.empty(FAR_ELEMENTS, dtype=dtype, device=device)
        return {name: far(layout, shape, buffer, slot) for slot, (name, shape) in enumerate(shapes.items())}
    return {
        name: guarded(_own(layout, name), shape, dtype, device, _SENTINEL if name == "out" else math.nan)
        for name, shape in shapes.items()
    }


def _own(layout: Layout, name: str) -> Layout:
    """One tensor's layout: in `mixed` each has another, and only keys and values can share memory between heads."""
    if layout == "expanded" and name in ("q", "out"):
        return "bshd"
    mixed: dict[str, Layout] = {"q": "bshd", "k": "every_second", "v": "bhsd", "out": "packed"}
    return mixed[name] if layout == "mixed" else layout


def _kept(tensor: Guarded) -> torch.Tensor:
    """What of an input a kernel must leave as it is: the whole buffer, or the view alone where that is too large."""
    return tensor.view.contiguous() if tensor.sentinel is None else tensor.buffer


def _generator(probe: Probe, name: str, seed: int) -> torch.Generator:
    """On the CPU, so that every device gets the same numbers; probes and tensors draw independently."""
    import torch

    key = hashlib.sha256(f"{seed}/{probe.name}/{name}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(key[:8], "big") >> 1)


def _fill(view: torch.Tensor, fill: Fill, generator: torch.Generator) -> None:
    import torch

    if view.stride(1) == 0 and view.shape[1] > 1:
        view = view[:, :1]
    values = _values(view.shape, fill, generator) + fill.offset
    while values.numel() and values.abs().max() > torch.finfo(view.dtype).max / 2:
        values = values / 2
    view.copy_(values)


def _values(shape: torch.Size, fill: Fill, generator: torch.Generator) -> torch.Tensor:
    """[Z, H, S, D] in fp32."""
    import torch

    if fill.kind == "constant":
        return torch.full(shape, fill.gain)
    values, step = torch.randn(shape, generator=generator), 1 / 16
    match fill.kind:
        case "normal":
            return values * fill.gain
        case "grid":
            values, step = values * fill.gain, 2.0 ** math.floor(math.log2(fill.gain)) / 16
        case "rising" | "falling":
            ramp = torch.linspace(0.0, fill.gain, shape[2])[:, None]
            values = values + (ramp if fill.kind == "rising" else ramp.flip(0))
        case "last" | "first":
            values[:, :, -1 if fill.kind == "last" else 0] = fill.gain
    return torch.round(values / step) * step
