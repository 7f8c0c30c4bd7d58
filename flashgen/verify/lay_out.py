"""Lays out the tensors of a probe: values from a seed, in the probe's layouts, inside guard bands.

All that a kernel may not use is NaN: what lies round the inputs, between their rows, and keys that no query sees.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flashgen.spec import AttentionSpec
from flashgen.verify.fills import fill, fill_bias, generator_of
from flashgen.verify.layouts import FAR_ELEMENTS, Guarded, Shape, bits, contiguous, far, guarded, is_far
from flashgen.verify.probes import NORMAL, Layout, Probe
from flashgen.verify.reference import Features, reference
from flashgen.verify.tensors import DESCALES, Tensors, kept, seen_keys

if TYPE_CHECKING:
    import torch

# What stands round outputs: a number that no kernel computes.
_SENTINEL = -7168.0

Rows = tuple[int, int, int]  # batch, heads, rows

_MIXED: dict[str, Layout] = {
    "q": "bshd",
    "k": "every_second",
    "v": "bhsd",
    "out": "packed",
    "dout": "cache_tail",
    "dq": "bhsd",
    "dk": "bhsd",
    "dv": "cache_tail",
    "bias": "every_second",
}
_NAMES = tuple(_MIXED)

# An emitted module's dropout_mask: (seed, batch, nheads_q, seqlen_q, seqlen_k, dropout_p, device) -> kept pairs.
DropoutMask = Callable[..., "torch.Tensor"]


def out_dtype(spec: AttentionSpec, dtype: torch.dtype) -> torch.dtype:
    """Of out, where q, k and v are shown in `dtype`."""
    import torch

    return torch.bfloat16 if spec.is_fp8 else dtype


def lay_out(
    probe: Probe,
    spec: AttentionSpec,
    dtype: torch.dtype,
    device: torch.device,
    seed: int,
    dropout_mask: DropoutMask | None = None,
) -> Tensors | None:
    """The probe's tensors for `spec`; None where the device's memory cannot hold what it spreads out.

    `dropout_mask` is the proven module's, where the spec has dropout.
    """
    import torch

    layouts = (probe.layout, probe.dout_layout or probe.layout)
    try:
        widest = out_dtype(spec, dtype)
        buffer = torch.empty(FAR_ELEMENTS, dtype=widest, device=device) if any(map(is_far, layouts)) else None
        return _laid_out(_Ground(probe, spec, dtype, device, seed, buffer), dropout_mask)
    except RuntimeError:
        if any(map(is_far, layouts)):
            return None
        raise


@dataclass(frozen=True, slots=True)
class _Ground:
    """Where a probe's tensors lie, and what draws their values."""

    probe: Probe
    spec: AttentionSpec
    dtype: torch.dtype
    device: torch.device
    seed: int
    buffer: torch.Tensor | None  # what far tensors share

    @property
    def rows_q(self) -> Rows:
        batch, heads_q, _, seqlen_q, _ = self.probe.shape
        return batch, heads_q, seqlen_q

    @property
    def rows_k(self) -> Rows:
        batch, _, heads_k, _, seqlen_k = self.probe.shape
        return batch, heads_k, seqlen_k

    def place(self, name: str, shape: Shape, surroundings: float) -> Guarded:
        """A [Z, H, S, D] tensor of the kernel's dtype, in its own layout; out may be wider."""
        layout = _own_layout(self.probe, name)
        dtype = out_dtype(self.spec, self.dtype) if name == "out" else self.dtype
        if is_far(layout):
            assert self.buffer is not None
            return far(layout, shape, self.buffer.view(dtype), _NAMES.index(name))
        return guarded(layout, shape, dtype, self.device, surroundings)

    def input(self, name: str, shape: Shape) -> Guarded:
        """One that is drawn by the probe's fill of that name, or normal."""
        placed = self.place(name, shape, math.nan)
        fill(placed.view, getattr(self.probe, name, NORMAL), self.generator(name))
        return placed

    def fp32_input(self, values: torch.Tensor) -> Guarded:
        """A contiguous one that holds `values`."""
        import torch

        placed = contiguous(tuple(values.shape), torch.float32, self.device, math.nan)
        placed.view.copy_(values)
        return placed

    def fp32_output(self, shape: tuple[int, ...]) -> Guarded:
        import torch

        return contiguous(shape, torch.float32, self.device, _SENTINEL)

    def generator(self, name: str) -> torch.Generator:
        return generator_of(self.probe, name, self.seed)


def _laid_out(ground: _Ground, dropout_mask: DropoutMask | None) -> Tensors:
    probe, spec = ground.probe, ground.spec
    first, scoring = probe.first_seen_key(spec), probe.scoring(spec)
    inputs = {
        "q": ground.input("q", (*ground.rows_q, spec.head_dim)),
        "k": ground.input("k", (*ground.rows_k, spec.head_dim)),
        "v": ground.input("v", (*ground.rows_k, spec.head_dim_v)),
    }
    for name in "kv":  # what the mask excludes must not matter, whatever it holds
        inputs[name].view[:, :, :first].fill_(math.nan)
    added = _feature_inputs(ground)
    features = _features(ground, added, dropout_mask)
    if spec.op == "forward":
        outputs = {
            "out": ground.place("out", (*ground.rows_q, spec.head_dim_v), _SENTINEL),
            "lse": ground.fp32_output(ground.rows_q),
        }
    else:
        out, lse = reference(*seen_keys(inputs, first), scoring, features)
        inputs |= _incoming(ground, out, lse)
        outputs = {name: output for name, output in _gradients(ground, added).items() if name in probe.wanted}
    inputs |= added
    return Tensors(
        inputs=inputs,
        outputs=outputs,
        drawn={name: bits(kept(x)).clone() for name, x in inputs.items()},
        scoring=scoring,
        features=features,
        first_seen_key=first,
    )


def _feature_inputs(ground: _Ground) -> dict[str, Guarded]:
    """What the spec's features read."""
    import torch

    probe, spec, (batch, heads, seqlen_q), seqlen_k = ground.probe, ground.spec, ground.rows_q, ground.rows_k[2]
    added = {}
    if spec.alibi:
        slopes = probe.alibi * torch.rand(batch, heads, generator=ground.generator("alibi_slopes"))
        added["alibi_slopes"] = ground.fp32_input(slopes)
    if spec.bias:
        lengths = zip("zhqk", (batch, heads, seqlen_q, seqlen_k), strict=True)
        z, h, q, k = (length if dim in probe.bias.dims else 1 for dim, length in lengths)
        shape = (z, h, q, k)
        added["bias"] = (
            contiguous(shape, torch.float32, ground.device, math.nan)
            if probe.bias.fp32
            else ground.place("bias", shape, math.nan)
        )
        fill_bias(added["bias"].view, probe.bias, ground.generator("bias"))
    if spec.sink:
        drawn = torch.randn(heads, generator=ground.generator("sinks"))
        added["sinks"] = ground.fp32_input(drawn if probe.sink is None else torch.full_like(drawn, probe.sink))
    if spec.is_fp8:
        heads_k = ground.rows_k[1]
        for name, count in zip(DESCALES, (heads, heads_k, heads_k), strict=True):
            added[name] = ground.fp32_input(0.5 + torch.rand(batch, count, generator=ground.generator(name)))
    if spec.dropout:
        seed = torch.randint(2**62, (2,), generator=ground.generator("seed")).to(ground.device)
        added["seed"] = Guarded(buffer=seed, view=seed, sentinel=None)
    return added


def _features(ground: _Ground, added: dict[str, Guarded], dropout_mask: DropoutMask | None) -> Features:
    """The same as the reference takes it: the bias has all queries and keys, as its gradient has."""
    probe, (batch, heads, seqlen_q), seqlen_k = ground.probe, ground.rows_q, ground.rows_k[2]
    views = {name: x.view for name, x in added.items() if name not in DESCALES}
    seed, keep = views.pop("seed", None), None
    if seed is not None:
        assert dropout_mask is not None
        keep = dropout_mask(seed, batch, heads, seqlen_q, seqlen_k, probe.dropout, ground.device)
    if "bias" in views:
        views["bias"] = views["bias"].expand(-1, -1, seqlen_q, seqlen_k)
    return Features(**views, keep=keep, dropout_p=0.0 if keep is None else probe.dropout)


def _incoming(ground: _Ground, out: torch.Tensor, lse: torch.Tensor) -> dict[str, Guarded]:
    """What a backward pass gets beside q, k and v: the forward's results, rounded, and their gradients."""
    import torch

    placed = {"out": ground.place("out", (*ground.rows_q, ground.spec.head_dim_v), math.nan)}
    placed["out"].view.copy_(out)
    placed["lse"] = ground.fp32_input(lse)
    placed["dout"] = ground.input("dout", (*ground.rows_q, ground.spec.head_dim_v))
    if ground.probe.dlse:
        placed["dlse"] = ground.fp32_input(torch.randn(ground.rows_q, generator=ground.generator("dlse")))
    return placed


def _gradients(ground: _Ground, added: dict[str, Guarded]) -> dict[str, Guarded]:
    """Those that a backward pass can fill."""
    spec = ground.spec
    placed = {
        "dq": ground.place("dq", (*ground.rows_q, spec.head_dim), _SENTINEL),
        "dk": ground.place("dk", (*ground.rows_k, spec.head_dim), _SENTINEL),
        "dv": ground.place("dv", (*ground.rows_k, spec.head_dim_v), _SENTINEL),
    }
    if spec.bias:
        placed["dbias"] = ground.fp32_output((*added["bias"].view.shape[:2], ground.rows_q[2], ground.rows_k[2]))
    if spec.sink:
        placed["dsinks"] = ground.fp32_output((ground.rows_q[1],))
    return placed


def _own_layout(probe: Probe, name: str) -> Layout:
    """One tensor's layout: in `mixed` each has another, and what is written shares no memory between heads."""
    if name == "dout" and probe.dout_layout is not None:
        return probe.dout_layout
    if probe.layout == "expanded" and name not in ("k", "v", "bias"):
        return "bshd"
    return _MIXED[name] if probe.layout == "mixed" else probe.layout
