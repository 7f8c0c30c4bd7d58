"""One rule of an emitted module, called on tensors of a workload's sizes: to compile it, or to time it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from types import ModuleType
from typing import TYPE_CHECKING, Any

from flashgen.spec import TORCH_NAMES, AttentionSpec, Workload

if TYPE_CHECKING:
    import torch

_SOFTCAP = 30.0
_DROPOUT_P = 0.1


@dataclass(frozen=True, kw_only=True, slots=True)
class Operands:
    """[Z, H, S, D] views of memory laid out [Z, S, H, D], as models hold it; lse [Z, Hq, Sq]."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    out: torch.Tensor
    lse: torch.Tensor
    features: dict[str, Any]


def all_rules(module: ModuleType) -> list[Any]:
    """The rules of an emitted module, tuned ones first."""
    return [rule for _, rules in module.TUNED for rule in rules] + list(module.PORTABLE)


def call_of(
    module: ModuleType,
    rule: Any,
    spec: AttentionSpec,
    workload: Workload,
    device: str,
    bounds: tuple[int, int],
    *,
    with_dbias: bool = False,
) -> Callable[[], None]:
    """What launches `rule` into tensors that are there already; `bounds` are those of a window (-1: infinite).

    The gradient of a bias, which few biases want, is among them if asked for.
    """
    x = operands(spec, workload, device)
    left, right = bounds if spec.window else (-1, 0) if spec.causal else (-1, -1)
    scoring = (spec.head_dim**-0.5, left, right, _SOFTCAP if spec.softcap else 0.0)
    if spec.op == "forward":
        return lambda: module._execute(rule, x.q, x.k, x.v, x.out, x.lse, *scoring, **x.features)
    dout, dq, dk, dv = (_like(each) for each in (x.out, x.q, x.k, x.v))
    tensors = (dout, None, x.q, x.k, x.v, x.out, x.lse, dq, dk, dv)
    features = {name: value for name, value in x.features.items() if name != "sinks"}
    if spec.bias and with_dbias:
        features["dbias"] = x.lse.new_empty(1, 1, workload.seqlen_q, workload.seqlen_k)
    return lambda: module._execute_backward(rule, *tensors, *scoring, **features)


@lru_cache(maxsize=4)
def operands(spec: AttentionSpec, workload: Workload, device: str) -> Operands:
    """Normal inputs, the same for all candidates of a spec: power, and so the clock, depends on the values."""
    import torch

    dtype, out_dtype = (getattr(torch, TORCH_NAMES[each]) for each in (spec.dtype, spec.out_dtype))
    generator = torch.Generator(device).manual_seed(0)
    batch, heads_q, rows, columns = workload.batch, workload.heads_q, workload.seqlen_q, workload.seqlen_k

    def heads(count: int, length: int, width: int, dtype: torch.dtype = dtype) -> torch.Tensor:
        shape = (batch, length, count, width)
        drawn = torch.randn(shape, dtype=out_dtype, device=device, generator=generator)
        return drawn.to(dtype).transpose(1, 2)

    features: dict[str, Any] = {}
    if spec.alibi:
        features["alibi_slopes"] = torch.logspace(-1, -8, heads_q, 2.0, device=device).repeat(batch, 1)
    if spec.bias:
        bias = torch.randn(rows, columns, dtype=dtype, device=device, generator=generator)
        features["bias"] = bias.expand(batch, heads_q, rows, columns)
    if spec.sink:
        features["sinks"] = torch.zeros(heads_q, device=device)
    if spec.dropout:
        features |= {"dropout_p": _DROPOUT_P, "seed": torch.zeros(2, dtype=torch.int64, device=device)}
    if spec.is_fp8:
        for name, count in (("q_descale", heads_q), ("k_descale", workload.heads_kv), ("v_descale", workload.heads_kv)):
            features[name] = torch.ones(batch, count, device=device)
    return Operands(
        q=heads(heads_q, rows, spec.head_dim),
        k=heads(workload.heads_kv, columns, spec.head_dim),
        v=heads(workload.heads_kv, columns, spec.head_dim_v),
        out=heads(heads_q, rows, spec.head_dim_v, out_dtype),
        # What scores of variance 1 have, so that the backward finds probabilities.
        lse=torch.full((batch, heads_q, rows), math.log(columns) + 0.5, device=device),
        features=features,
    )


def _like(x: torch.Tensor) -> torch.Tensor:
    """Normal values in x's layout."""
    import torch

    return torch.randn_like(x, memory_format=torch.preserve_format)
