"""The values of a probe's tensors. They are drawn on the CPU, so that every device gets the same."""

from __future__ import annotations

import hashlib
import math
from typing import TYPE_CHECKING

from flashgen.verify.probes import Bias, Fill, Probe

if TYPE_CHECKING:
    import torch


def generator_of(probe: Probe, name: str, seed: int) -> torch.Generator:
    """Probes and tensors draw independently."""
    import torch

    key = hashlib.sha256(f"{seed}/{probe.name}/{name}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(key[:8], "big") >> 1)


def fill(view: torch.Tensor, values: Fill, generator: torch.Generator) -> None:
    """Draws the elements of `view`, each place in memory once."""
    import torch

    view = _once(view)
    drawn = _drawn(view.shape, values, generator) + values.offset
    while drawn.numel() and drawn.abs().max() > torch.finfo(view.dtype).max / 2:
        drawn = drawn / 2
    view.copy_(drawn)


def fill_bias(view: torch.Tensor, bias: Bias, generator: torch.Generator) -> None:
    """Draws a bias of one or all batches, heads, queries and keys."""
    import torch

    if bias.kind == "distance":
        i, j = (torch.arange(length) for length in view.shape[2:])
        view.copy_((i[:, None] - j[None, :]).expand(view.shape))
        return
    view = _once(view)
    drawn = torch.randn(view.shape, generator=generator)
    match bias.kind:
        case "holes":
            drawn[torch.rand(view.shape, generator=generator) < 1 / 3] = -math.inf
            drawn[..., view.shape[3] // 2] = -math.inf
        case "blind":
            drawn[:, :, 1::3] = -math.inf
        case "least":
            drawn[:, :, 1::3] = torch.finfo(view.dtype).min
    view.copy_(drawn)


def _once(view: torch.Tensor) -> torch.Tensor:
    """The view without what shares memory: the first of each dim of stride 0."""
    for dim in range(view.dim()):
        if view.stride(dim) == 0:
            view = view.narrow(dim, 0, min(1, view.shape[dim]))
    return view


def _drawn(shape: torch.Size, values: Fill, generator: torch.Generator) -> torch.Tensor:
    """In fp32; a row is a slice of the dim before the last."""
    import torch

    if values.kind == "constant":
        return torch.full(shape, values.gain)
    drawn, step = torch.randn(shape, generator=generator), 1 / 16
    match values.kind:
        case "normal":
            return drawn * values.gain
        case "grid":
            drawn, step = drawn * values.gain, 2.0 ** math.floor(math.log2(values.gain)) / 16
        case "rising" | "falling":
            ramp = torch.linspace(0.0, values.gain, shape[2])[:, None]
            drawn = drawn + (ramp if values.kind == "rising" else ramp.flip(0))
        case "last" | "first":
            drawn[:, :, -1 if values.kind == "last" else 0] = values.gain
    return torch.round(drawn / step) * step
