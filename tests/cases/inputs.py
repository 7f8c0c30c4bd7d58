"""Tensors of a case: its values in the memory layouts it names, inside NaN that a read past an end would show."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

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


def _expand0(x: torch.Tensor) -> torch.Tensor:
    return _contiguous(x[:1, :1, :1, :1]).expand(x.shape)


def _cat_view(x: torch.Tensor) -> torch.Tensor:
    """The second part of a concatenation along the rows."""
    batch, seqlen, heads, width = x.shape
    return guarded((batch, 2 * seqlen, heads, width), x.dtype, str(x.device))[:, seqlen:].copy_(x)


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
    "expand0": _expand0,
    "cat_view": _cat_view,
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
    """The tensors that `case` describes.

    Extra keys: gain, gain_q/k/v, fill_q/k/v, q/k/v, layout, head_dim_v, dtypes.
    """
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
        dtype = case.extra.get("dtypes", {}).get(name, case.given("dtype"))
        tensors[name] = x.to(DTYPES[dtype]).to(device)
    layout = case.extra.get("layout", {})
    if "packed_mqa" in layout.values():
        return _packed_mqa(**tensors)
    return Inputs(**{name: _arrange(x, layout.get(name, "contiguous")) for name, x in tensors.items()})


def make_features(case: Case, device: str = "cpu", seed: int = 1) -> dict[str, Any]:
    """What else `flash_attention` is given: a bias [Sq, Sk] in fp32, dropout_p and its seed.

    Extra keys: bias, which says how it comes of the indices; bias_row, of which one row is a value, the others normal;
    dropout and dropout_seed.
    """
    features: dict[str, Any] = {}
    queries, keys = case.given("seqlen_q"), case.given("seqlen_k")
    if (rule := case.extra.get("bias")) is not None:
        assert rule == "q_idx - kv_idx", f"{case.id} has a bias that the harness does not know: {rule}"
        features["bias"] = torch.arange(queries)[:, None] - torch.arange(keys)[None, :]
    if (row := case.extra.get("bias_row")) is not None:
        features["bias"] = torch.randn(queries, keys, generator=torch.Generator().manual_seed(seed))
        features["bias"][row["row"]] = row["value"]
    if "bias" in features:
        features["bias"] = _contiguous(features["bias"].float().to(device))
    if (dropout_p := case.extra.get("dropout")) is not None:
        dropout_seed = torch.tensor(case.extra.get("dropout_seed", [seed, 2**40]), device=device)
        features |= {"dropout_p": dropout_p, "dropout_seed": dropout_seed}
    return features


def make_dout(case: Case, device: str = "cpu", seed: int = 2) -> torch.Tensor:
    """The gradient of out that arrives, [Z, Sq, Hq, Dv], normal. Extra keys: do_layout, do_dtype."""
    width = case.extra.get("head_dim_v", case.given("head_dim"))
    shape = (case.given("batch"), case.given("seqlen_q"), case.given("heads_q"), width)
    dout = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    dtype = DTYPES[case.extra.get("do_dtype", case.given("dtype"))]
    return _arrange(dout.to(dtype).to(device), case.extra.get("do_layout", "contiguous"))


def snapshot(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Copies of the whole memory under the tensors, guards included, for bitwise comparison."""
    return [torch.tensor([], dtype=torch.uint8, device=x.device).set_(x.untyped_storage()).clone() for x in tensors]
