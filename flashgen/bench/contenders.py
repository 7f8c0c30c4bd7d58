"""Who is timed: the emitted module, and the peers that this machine has. All get the same [Z, H, S, D] tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

from flashgen.bench.suites import BenchRow

if TYPE_CHECKING:
    import torch

    Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor]

Make = Callable[[BenchRow, "Tensors"], Callable[[], Any]]


@dataclass(frozen=True, slots=True)
class Contender:
    """`make` gives, for one row and its tensors, the call that is timed; it returns out as [Z, H, S, D].

    What a contender prepares once for a shape (a block mask, a compilation, a layout it wants) is done in `make`.
    """

    name: str
    make: Make


def flashgen_contender(module: ModuleType) -> Contender:
    """The emitted module through its public function."""

    def make(row: BenchRow, tensors: Tensors) -> Callable[[], Any]:
        q, k, v = tensors
        return lambda: module.flash_attention(q, k, v, causal=row.spec.causal, layout="bhsd")

    return Contender("flashgen", make)


def _sdpa(backend_name: str) -> Make:
    def make(row: BenchRow, tensors: Tensors) -> Callable[[], Any]:
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel

        backend = getattr(SDPBackend, backend_name)
        grouped = row.workload.heads_q != row.workload.heads_kv

        def call() -> torch.Tensor:
            with sdpa_kernel(backend):
                attend = torch.nn.functional.scaled_dot_product_attention
                return attend(*tensors, is_causal=row.spec.causal, enable_gqa=grouped)

        return call

    return make


def _flex(row: BenchRow, tensors: Tensors) -> Callable[[], Any]:
    import torch
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    torch._dynamo.reset()  # else the ninth shape is past its recompile limit, and runs eagerly
    compiled = torch.compile(flex_attention, dynamic=False)
    sizes, mask = row.workload, None
    if row.spec.causal:
        mask = create_block_mask(
            lambda b, h, i, j: i >= j, None, None, sizes.seqlen_q, sizes.seqlen_k, device=tensors[0].device
        )
    grouped = sizes.heads_q != sizes.heads_kv
    return lambda: compiled(*tensors, block_mask=mask, enable_gqa=grouped)


def _fa4(row: BenchRow, tensors: Tensors) -> Callable[[], Any]:
    from flash_attn.cute import flash_attn_func

    q, k, v = (x.transpose(1, 2).contiguous() for x in tensors)

    def call() -> Any:
        result = flash_attn_func(q, k, v, causal=row.spec.causal)
        return (result[0] if isinstance(result, tuple) else result).transpose(1, 2)

    return call


PEERS = (
    Contender("FA2 (SDPA)", _sdpa("FLASH_ATTENTION")),
    Contender("cuDNN (SDPA)", _sdpa("CUDNN_ATTENTION")),
    Contender("FlexAttention", _flex),
    Contender("FA4", _fa4),
)
