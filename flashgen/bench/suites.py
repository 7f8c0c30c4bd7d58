"""What is timed: named lists of rows, each one pass of one attention call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from flashgen.errors import SpecError
from flashgen.spec import AttentionSpec, Op, Workload

DROPOUT_P = 0.1  # GPT-2's attn_pdrop

OpChoice = Op | Literal["all"]


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchRow:
    """One timed call: what it computes and its sizes. A backward row is timed alone, or `with_forward` before it."""

    spec: AttentionSpec
    workload: Workload
    with_forward: bool = False

    @property
    def passes(self) -> str:
        """`forward`, `backward` or `forward+backward`."""
        return f"forward+{self.spec.op}" if self.with_forward else self.spec.op

    @property
    def key(self) -> str:
        """Such as `backward-bf16-d64-causal b16-h32-q1024-k1024`."""
        return f"{self.passes}{self.spec.key.removeprefix(self.spec.op)} {self.workload.key}"

    @property
    def dropout_p(self) -> float:
        return DROPOUT_P if self.spec.dropout else 0.0

    @property
    def flops(self) -> float:
        """Matmul FLOPs of the call, as Workload.flops counts them."""
        forward = self.workload.flops(replace(self.spec, op="forward")) if self.with_forward else 0.0
        return forward + self.workload.flops(self.spec)


def _anchors() -> tuple[BenchRow, ...]:
    """16384 tokens, hidden size 2048, at three lengths, full and causal; and one grouped row (32/8 heads, 8192)."""
    shapes = [
        (head_dim, 16384 // seqlen, 2048 // head_dim, 2048 // head_dim, seqlen)
        for head_dim in (64, 128, 256)
        for seqlen in (1024, 4096, 16384)
    ]
    shapes.append((128, 2, 32, 8, 8192))
    ops: tuple[Op, ...] = ("forward", "backward")
    return tuple(_anchor(op, *shape, causal) for op in ops for shape in shapes for causal in (False, True))


def _anchor(op: Op, head_dim: int, batch: int, heads_q: int, heads_kv: int, seqlen: int, causal: bool) -> BenchRow:
    spec = AttentionSpec(op=op, dtype="bf16", head_dim=head_dim, head_dim_v=head_dim, causal=causal)
    sizes = Workload(batch=batch, heads_q=heads_q, heads_kv=heads_kv, seqlen_q=seqlen, seqlen_k=seqlen)
    return BenchRow(spec=spec, workload=sizes)


def _fp8() -> tuple[BenchRow, ...]:
    """The forward anchors in e4m3."""
    forward = [row for row in _anchors() if row.passes == "forward"]
    return tuple(replace(row, spec=replace(row.spec, dtype="fp8")) for row in forward)


def _paper() -> tuple[BenchRow, ...]:
    """GPT-2 medium as in Fig. 2 (left) of the FlashAttention paper (arXiv 2205.14135), without and with dropout."""
    spec = AttentionSpec(op="backward", dtype="fp16", head_dim=64, head_dim_v=64)
    sizes = Workload(batch=64, heads_q=16, heads_kv=16, seqlen_q=1024, seqlen_k=1024)
    specs = (spec, replace(spec, dropout=True))
    return tuple(BenchRow(spec=each, workload=sizes, with_forward=True) for each in specs)


SUITES = {"anchors": _anchors, "paper": _paper, "fp8": _fp8}


def suite(name: str, op: OpChoice = "all", head_dims: Sequence[int] = ()) -> tuple[BenchRow, ...]:
    """The rows of a suite; of one op alone, or of these head dims alone.

    Raises:
        SpecError: no such suite, or no row of it is left.
    """
    if name not in SUITES:
        raise SpecError(f"suite {name!r} is not one of {', '.join(SUITES)}")
    rows = SUITES[name]()
    kept = tuple(row for row in rows if op in ("all", row.passes) and (not head_dims or row.spec.head_dim in head_dims))
    if not kept:
        asked = " ".join((f"--op {op}", *(f"--head-dim {head_dim}" for head_dim in head_dims)))
        passes = ", ".join(dict.fromkeys(row.passes for row in rows))
        dims = ", ".join(str(head_dim) for head_dim in sorted({row.spec.head_dim for row in rows}))
        raise SpecError(f"{asked} leaves no row of suite {name}, which has {passes} at head_dim {dims}")
    return kept
