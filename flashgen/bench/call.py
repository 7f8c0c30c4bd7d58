"""A row's tensors, and one contender's call on them: the forward, the backward alone, or both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flashgen.bench.contenders import Contender
from flashgen.bench.suites import BenchRow
from flashgen.spec import TORCH_NAMES

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Inputs:
    """q, k, v and the gradient of out, contiguous [Z, H, S, D], in the row's dtype; of fp8, which has none, in bf16."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    dout: torch.Tensor


@dataclass(frozen=True, slots=True)
class Prepared:
    """A call to be timed, and what it answers: `out`, and backward also `dq`, `dk` and `dv`, all [Z, H, S, D]."""

    call: Callable[[], object]
    answer: dict[str, torch.Tensor]


def draw(row: BenchRow, device: str) -> Inputs:
    """Normal tensors, the same for every contender: power, and so the clock, depends on the values."""
    import torch

    generator = torch.Generator(device).manual_seed(0)
    sizes, spec = row.workload, row.spec
    options: dict[str, Any] = {
        "dtype": getattr(torch, TORCH_NAMES[spec.out_dtype]),  # none is drawn in fp8
        "device": generator.device,
        "generator": generator,
    }
    dtype = getattr(torch, TORCH_NAMES[spec.dtype])
    return Inputs(
        q=torch.randn(sizes.batch, sizes.heads_q, sizes.seqlen_q, spec.head_dim, **options).to(dtype),
        k=torch.randn(sizes.batch, sizes.heads_kv, sizes.seqlen_k, spec.head_dim, **options).to(dtype),
        v=torch.randn(sizes.batch, sizes.heads_kv, sizes.seqlen_k, spec.head_dim_v, **options).to(dtype),
        dout=torch.randn(sizes.batch, sizes.heads_q, sizes.seqlen_q, spec.head_dim_v, **options),
    )


def prepare(row: BenchRow, contender: Contender, inputs: Inputs) -> Prepared:
    """The contender's call for this row, run once.

    Raises:
        Exception: whatever the contender raises that is not installed, or cannot do this.
    """
    import torch

    def lay_out(x: torch.Tensor) -> torch.Tensor:
        """From [Z, H, S, D] to the contender's layout, or back."""
        return x.transpose(1, 2) if contender.layout == "bshd" else x

    attend = contender.make(row, str(inputs.q.device))
    dtype = getattr(torch, TORCH_NAMES[contender.dtype or row.spec.dtype])
    q, k, v = (lay_out(x).to(dtype).contiguous().detach() for x in (inputs.q, inputs.k, inputs.v))
    if row.spec.op == "forward":
        return Prepared(lambda: attend(q, k, v), {"out": lay_out(attend(q, k, v))})
    leaves = tuple(x.requires_grad_() for x in (q, k, v))
    out = attend(*leaves)
    if not out.requires_grad:
        raise NotImplementedError("no backward pass: its out carries no gradient")
    dout = torch.empty_like(out).copy_(lay_out(inputs.dout))  # strides as out's: cuDNN copies any other

    def backward() -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(out, leaves, dout, retain_graph=True)

    def both() -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(attend(*leaves), leaves, dout)

    call = both if row.with_forward else backward
    answers = (out.detach(), *call())
    return Prepared(call, {name: lay_out(x) for name, x in zip(("out", "dq", "dk", "dv"), answers)})
