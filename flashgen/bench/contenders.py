"""Who is timed: the emitted module, the peers that this machine has, and standard attention as the paper timed it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

from flashgen.bench.suites import BenchRow
from flashgen.spec import Dtype

if TYPE_CHECKING:
    import torch

    Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]

Make = Callable[[BenchRow, str], "Attend"]

STANDARD = "standard"


@dataclass(frozen=True, slots=True)
class Contender:
    """`make` gives, for one row and device, the forward: from q, k and v to out, all of them in `layout`, and in
    `dtype` where it is not the row's.

    What a contender prepares once for a shape (a block mask, a compilation) is done in `make`. Its backward pass is
    what autograd calls. `bhsd` is [Z, H, S, D], `bshd` [Z, S, H, D].
    """

    name: str
    make: Make
    layout: Literal["bhsd", "bshd"] = "bhsd"
    dtype: Dtype | None = None


def contenders(module: ModuleType, suite_name: str, peers: bool) -> tuple[Contender, ...]:
    """The emitted module first. The paper's suite compares with standard attention, whether with peers or without; fp8
    with the module's own bf16, and with cuDNN's."""
    if suite_name == "fp8":
        own = flashgen_contender(module)
        return (own, _in_bf16(own), *((_in_bf16(CUDNN),) if peers else ()))
    standard = (Contender(STANDARD, _standard),) if suite_name == "paper" else ()
    return (flashgen_contender(module), *standard, *(PEERS if peers else ()))


def flashgen_contender(module: ModuleType) -> Contender:
    """The emitted module through its public function."""

    def make(row: BenchRow, device: str) -> Attend:
        features = {"dropout_p": row.dropout_p} if row.spec.dropout else {}
        return lambda q, k, v: module.flash_attention(q, k, v, causal=row.spec.causal, layout="bhsd", **features)

    return Contender("flashgen", make)


def _in_bf16(contender: Contender) -> Contender:
    return replace(contender, name=f"{contender.name} bf16", dtype="bf16")


def _standard(row: BenchRow, device: str) -> Attend:
    """Full attention, each step a kernel of its own, with scores and probabilities in memory in the inputs' dtype."""
    import torch

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        probabilities = torch.softmax((q * row.spec.head_dim**-0.5) @ k.transpose(-1, -2), -1)
        if row.spec.dropout:
            probabilities = torch.nn.functional.dropout(probabilities, row.dropout_p)
        return probabilities @ v

    return attend


def _sdpa(backend_name: str) -> Make:
    def make(row: BenchRow, device: str) -> Attend:
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel

        backend = getattr(SDPBackend, backend_name)
        grouped = row.workload.heads_q != row.workload.heads_kv

        def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            with sdpa_kernel(backend):
                return torch.nn.functional.scaled_dot_product_attention(
                    q, k, v, dropout_p=row.dropout_p, is_causal=row.spec.causal, enable_gqa=grouped
                )

        return attend

    return make


def _flex(row: BenchRow, device: str) -> Attend:
    import torch
    from torch._functorch import config
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    _refuse_dropout(row, "FlexAttention")
    torch._dynamo.reset()  # else the ninth shape is past its recompile limit, and runs eagerly
    config.donated_buffer = row.passes != "backward"  # a backward that is run again must not reuse what forward saved
    compiled: Any = torch.compile(flex_attention, dynamic=False)
    sizes, mask = row.workload, None
    if row.spec.causal:
        mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, sizes.seqlen_q, sizes.seqlen_k, device=device)
    grouped = sizes.heads_q != sizes.heads_kv
    return lambda q, k, v: compiled(q, k, v, block_mask=mask, enable_gqa=grouped)


def _fa4(row: BenchRow, device: str) -> Attend:
    from flash_attn.cute import flash_attn_func

    _refuse_dropout(row, "FA4")

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        result: Any = flash_attn_func(q, k, v, causal=row.spec.causal)
        out: torch.Tensor = result[0] if isinstance(result, tuple) else result
        return out

    return attend


def _refuse_dropout(row: BenchRow, name: str) -> None:
    if row.spec.dropout:
        raise NotImplementedError(f"{name} has no dropout")


CUDNN = Contender("cuDNN (SDPA)", _sdpa("CUDNN_ATTENTION"))
PEERS = (
    Contender("FA2 (SDPA)", _sdpa("FLASH_ATTENTION")),
    CUDNN,
    Contender("FlexAttention", _flex),
    Contender("FA4", _fa4, layout="bshd"),
)
