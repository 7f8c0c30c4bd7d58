"""Tensors of a case: its values in the memory layouts it names, inside NaN that a read past an end would show."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

import torch

from tests.cases.case import Case

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}
_GUARD = 4096  # elements of NaN before and after; keeps 16-byte alignment


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """q [Z, Sq, Hq, D], k and v [Z, Sk, Hk, D or Dv], in whatever memory layout."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor

    def contiguous(self) -> Inputs:
        """The same values in plain [Z, S, H, D] memory, guarded."""
        return Inputs(**{name: _contiguous(x) for name, x in vars(self).items()})

    def bhsd(self) -> Inputs:
        """The same memory seen as [Z, H, S, D]."""
        return Inputs(**{name: x.transpose(1, 2) for name, x in vars(self).items()})


def guarded(shape: tuple[int, ...], dtype: torch.dtype, device: str) -> torch.Tensor:
    """A contiguous tensor of NaN with NaN round it."""
    size = math.prod(shape)
    return torch.full((size + 2 * _GUARD,), math.nan, dtype=dtype, device=device)[_GUARD : _GUARD + size].view(shape)


def _contiguous(x: torch.Tensor) -> torch.Tensor:
    return guarded(tuple(x.shape), x.dtype, str(x.device)).copy_(x)


def _bhsd_view(x: torch.Tensor) -> torch.Tensor:
    return _contiguous(x.transpose(1, 2)).transpose(1, 2)


def _every_2nd_token(x: torch.Tensor) -> torch.Tensor:
    batch, seqlen, heads, width = x.shape
    return guarded((batch, 2 * seqlen, heads, width), x.dtype, str(x.device))[:, ::2].copy_(x)


def _last_dim_strided(x: torch.Tensor) -> torch.Tensor:
    return _contiguous(x.transpose(2, 3)).transpose(2, 3)


def _expand_heads(x: torch.Tensor) -> torch.Tensor:
    return _contiguous(x[:, :, :1]).expand(x.shape)


def _singleton_stride(x: torch.Tensor, stride: int) -> torch.Tensor:
    assert x.shape[2] == 1, "only a dim of length 1 may have any stride"
    plain = _contiguous(x)
    return plain.as_strided(plain.shape, (*plain.stride()[:2], stride, 1), plain.storage_offset())


_ARRANGE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "bshd": _contiguous,
    "contiguous": _contiguous,
    "bhsd_view": _bhsd_view,
    "every_2nd_token": _every_2nd_token,
    "last_dim_strided": _last_dim_strided,
    "expand_heads": _expand_heads,
}


def _arrange(x: torch.Tensor, layout: str) -> torch.Tensor:
    if match := re.fullmatch(r"singleton_stride_(\d+)", layout):
        return _singleton_stride(x, int(match[1]))
    return _ARRANGE[layout](x)


def _packed_mqa(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Inputs:
    """q's heads, then k's, then v's, of each token side by side."""
    packed = _contiguous(torch.cat([q, k, v], dim=2))
    return Inputs(**dict(zip("qkv", torch.split(packed, [x.shape[2] for x in (q, k, v)], dim=2), strict=True)))


def make_inputs(case: Case, device: str = "cpu", seed: int = 0) -> Inputs:
    """The tensors that `case` describes. Its extra keys: gain, gain_q/k/v, fill_q/k/v, q/k/v, layout, head_dim_v."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, rows, heads in (
        ("q", "seqlen_q", "heads_q"),
        ("k", "seqlen_k", "heads_kv"),
        ("v", "seqlen_k", "heads_kv"),
    ):
        width = case.extra.get("head_dim_v" if name == "v" else "", case.given("head_dim"))
        x = torch.randn(case.given("batch"), case.given(rows), case.given(heads), width, generator=generator)
        x *= case.extra.get("gain", 1.0) * case.extra.get(f"gain_{name}", 1.0)
        if (fill := case.extra.get(f"fill_{name}")) is not None:
            x.fill_(fill)
        if (values := case.extra.get(name)) is not None:
            x.copy_(torch.tensor(values)[None, :, None, :].expand_as(x))
        tensors[name] = x.to(DTYPES[case.given("dtype")]).to(device)
    layout = case.extra.get("layout", {})
    if "packed_mqa" in layout.values():
        return _packed_mqa(**tensors)
    return Inputs(**{name: _arrange(x, layout.get(name, "contiguous")) for name, x in tensors.items()})


def snapshot(inputs: Inputs) -> list[torch.Tensor]:
    """Copies of the whole memory under the inputs, guards included, for bitwise comparison."""
    return [
        torch.tensor([], dtype=torch.uint8, device=x.device).set_(x.untyped_storage()).clone()
        for x in vars(inputs).values()
    ]
