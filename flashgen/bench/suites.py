"""What is timed: named lists of rows, each one attention call."""

from __future__ import annotations

from dataclasses import dataclass

from flashgen.errors import SpecError
from flashgen.spec import AttentionSpec, Workload


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchRow:
    """One call: what it computes and its sizes."""

    spec: AttentionSpec
    workload: Workload

    @property
    def key(self) -> str:
        return f"{self.spec.key} {self.workload.key}"


def _row(head_dim: int, batch: int, heads_q: int, heads_kv: int, seqlen: int, causal: bool) -> BenchRow:
    spec = AttentionSpec(dtype="bf16", head_dim=head_dim, head_dim_v=head_dim, causal=causal)
    sizes = Workload(batch=batch, heads_q=heads_q, heads_kv=heads_kv, seqlen_q=seqlen, seqlen_k=seqlen)
    return BenchRow(spec=spec, workload=sizes)


def _anchors() -> tuple[BenchRow, ...]:
    """16384 tokens, hidden size 2048, at three lengths, full and causal; and one grouped row (32/8 heads, 8192)."""
    shapes = [
        (head_dim, 16384 // seqlen, 2048 // head_dim, 2048 // head_dim, seqlen)
        for head_dim in (64, 128, 256)
        for seqlen in (1024, 4096, 16384)
    ]
    shapes.append((128, 2, 32, 8, 8192))
    return tuple(_row(*shape, causal) for shape in shapes for causal in (False, True))


SUITES = {"anchors": _anchors}


def suite(name: str) -> tuple[BenchRow, ...]:
    """The rows of a suite.

    Raises:
        SpecError: no such suite.
    """
    if name not in SUITES:
        raise SpecError(f"suite {name!r} is not one of {', '.join(SUITES)}")
    return SUITES[name]()
