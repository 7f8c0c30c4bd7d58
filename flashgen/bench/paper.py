"""The FlashAttention paper's GPT-2 row as a table: time, FLOPs and HBM bytes, beside what the paper reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flashgen.bench.contenders import STANDARD
from flashgen.bench.ncu import METRICS
from flashgen.bench.run import RowResult, Timed
from flashgen.bench.table import facts_lines, gap_lines, table_lines

HEAD = ("contender", "ms", "GFLOP", "HBM GB", "kernels", "standard's time / its", "standard's bytes / its")

_MATMULS, _KEPT = 7, 6  # of the forward and backward; without Q K^T a second time where probabilities are kept


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """One contender's figures for a forward and backward; None is what was not timed, or not counted."""

    name: str
    ms: float | None
    gflop: float
    gigabytes: float | None
    kernels: int | None = None

    def cells(self, standard: Line) -> list[str]:
        """HEAD's columns, with ratios to standard attention on the same GPU."""
        kernels = "-" if self.kernels is None else str(self.kernels)
        time = _ratio(standard.ms, self.ms)
        traffic = _ratio(standard.gigabytes, self.gigabytes)
        return [self.name, _figure(self.ms), _figure(self.gflop), _figure(self.gigabytes), kernels, time, traffic]


# arXiv 2205.14135, Fig. 2 left: one A100.
_PAPER = (
    Line(name="standard (the paper, A100)", ms=41.7, gflop=66.6, gigabytes=40.3),
    Line(name="FlashAttention (the paper, A100)", ms=7.3, gflop=75.2, gigabytes=4.4),
)


def cells(result: RowResult) -> list[list[str]]:
    """HEAD's columns for every contender, then for the paper's two."""
    lines = [_line(result, timed) for timed in result.timed]
    standard = next(line for line in lines if line.name == STANDARD)
    return [*(line.cells(standard) for line in lines), *(line.cells(_PAPER[0]) for line in _PAPER)]


def _line(result: RowResult, timed: Timed) -> Line:
    counted = next((each for each in result.counted if each.contender == timed.contender and each.kernels), None)
    kept = _KEPT / _MATMULS if timed.contender == STANDARD else 1.0
    return Line(
        name=timed.contender,
        ms=timed.median_us / 1e3 if timed.rounds else None,
        gflop=kept * result.row.flops / 1e9,
        gigabytes=counted.total / 1e9 if counted else None,
        kernels=counted.kernels if counted else None,
    )


def title(result: RowResult) -> str:
    """The row in words."""
    row, sizes = result.row, result.row.workload
    dropout = f"dropout {row.dropout_p}" if row.spec.dropout else "no dropout"
    return (
        f"{row.passes}, {row.spec.dtype}, batch {sizes.batch}, {sizes.heads_q} heads, seqlen {sizes.seqlen_q}, "
        f"head_dim {row.spec.head_dim}, {dropout}"
    )


def as_markdown(results: Sequence[RowResult], facts: dict[str, str]) -> str:
    """A table for each row, and how its figures were come by."""
    lines = facts_lines(facts)
    for result in results:
        lines += ["", f"## {title(result)}", "", *table_lines(HEAD, cells(result))]
    return "\n".join([*lines, "", *_NOTES, *gap_lines(results)]) + "\n"


_NOTES = (
    "- ms: median of interleaved samples of one forward and backward; the L2 is emptied before each.",
    "- standard: softmax(Q K^T) V with every step a kernel of its own, scores and probabilities in memory in fp16, and "
    "the scale folded into Q.",
    f"- GFLOP: 2 * head_dim for every query-key pair and matmul: {_MATMULS} matmuls, 2 forward and 5 backward; {_KEPT} "
    "in standard attention, which keeps its probabilities. What a kernel repeats because it splits its passes is not "
    "counted. The paper's two figures are as printed there, and do not follow this count.",
    f"- HBM GB (1e9 bytes): {' + '.join(METRICS)} of all kernels of one call, after others to warm up, by Nsight "
    "Compute. Caches and clocks are as they are (--cache-control none, --clock-control none): no flush in between.",
    "- Fig. 1 of the paper gives 7.6x over PyTorch for the attention of GPT-2; the paper's ratios here are of Fig. 2.",
)


def _figure(x: float | None) -> str:
    return "-" if x is None else f"{x:.3g}"


def _ratio(standard: float | None, its: float | None) -> str:
    return "-" if standard is None or its is None else f"{standard / its:.1f}"
