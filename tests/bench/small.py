"""Small rows, contenders that run on a CPU, and a clock that needs no GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch

from flashgen.bench.contenders import Contender
from flashgen.bench.run import RowResult, Timed
from flashgen.bench.suites import BenchRow, suite
from flashgen.spec import AttentionSpec, Op, Workload
from flashgen.tune.timing import Call

FACTS = {"GPU": "some GPU", "command": "flashgen bench module.py"}


def row(op: Op = "forward", *, heads_kv: int = 2, seqlen: int = 32, with_forward: bool = False, **of: Any) -> BenchRow:
    """One head_dim of 64 in fp32, two query heads."""
    spec = AttentionSpec(op=op, dtype="fp32", head_dim=64, head_dim_v=64, **of)
    sizes = Workload(batch=1, heads_q=2, heads_kv=heads_kv, seqlen_q=seqlen, seqlen_k=seqlen)
    return BenchRow(spec=spec, workload=sizes, with_forward=with_forward)


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)


def contender(name: str, change: Callable[[torch.Tensor], torch.Tensor] = lambda out: out) -> Contender:
    """Attention by torch, with `change` on its out."""
    return Contender(name, lambda row, device: lambda q, k, v: change(attention(q, k, v, row.spec.causal)))


def module() -> ModuleType:
    """What stands for an emitted module: its public function alone."""
    made = ModuleType("emitted")
    made.flash_attention = lambda q, k, v, *, causal, layout: attention(q, k, v, causal)  # type: ignore[attr-defined]
    return made


class CallingClock:
    """Runs every call it is given, and says that the n-th of them takes n times 100 us."""

    def sample(self, calls: Sequence[Call], rounds: int) -> list[list[float]]:
        for call in calls:
            call()
        return [[100.0 * (number + 1)] * rounds for number in range(len(calls))]


def result(us: float = 100.0, peer_us: float = 150.0, of: BenchRow | None = None) -> RowResult:
    """`flashgen` and `peer` with these times, and `absent`, on the first anchor or another row."""
    timed = (
        Timed(contender="flashgen", rounds=((us, us + 2, us - 2), (us, us, us))),
        Timed(contender="peer", rounds=((peer_us,), (peer_us,))),
        Timed(contender="absent", missing="ModuleNotFoundError: No module named 'absent'"),
    )
    return RowResult(row=of or suite("anchors")[0], timed=timed)
