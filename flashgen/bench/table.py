"""Results as files: every sample in JSON, and a Markdown table of medians with the command that made it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from flashgen.bench.run import RowResult


def facts_of(index: int, command: str) -> dict[str, str]:
    """What a reader needs to judge the figures: the GPU, the versions, and the command."""
    import torch
    import triton

    cudnn: Any = torch.backends.cudnn
    return {
        "GPU": torch.cuda.get_device_name(index),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "cuDNN": str(cudnn.version()),
        "command": command,
    }


def summary(result: RowResult) -> str:
    """One row on one line: the key, and each contender's TFLOP/s."""
    rates = zip(result.timed, result.rates())
    shown = ", ".join(f"{timed.contender} {rate:.0f}" if rate else f"{timed.contender} -" for timed, rate in rates)
    return f"{result.row.key}: {shown} TFLOP/s"


def medians(result: RowResult) -> dict[str, Any]:
    """One row without its samples: microseconds and TFLOP/s by contender, HBM bytes where they were counted, and why
    a contender has none."""
    return {
        "row": result.row.key,
        "pass": result.row.passes,
        "median_us": {timed.contender: round(timed.median_us, 2) for timed in result.timed if timed.rounds},
        "tflops": {timed.contender: round(result.tflops(timed), 1) for timed in result.timed if timed.rounds},
        "hbm_bytes": {counted.contender: counted.total for counted in result.counted if counted.kernels},
        "not_timed": {timed.contender: timed.missing for timed in result.timed if timed.missing},
        "not_counted": {counted.contender: counted.missing for counted in result.counted if counted.missing},
    }


def as_json(results: Sequence[RowResult], facts: dict[str, str]) -> str:
    """`facts` name the GPU, the versions and the command."""
    rows = [
        {
            "spec": result.row.spec.key,
            "workload": result.row.workload.key,
            "pass": result.row.passes,
            "flops": result.row.flops,
            "timed": [asdict(timed) for timed in result.timed],
            "counted": [asdict(counted) for counted in result.counted],
        }
        for result in results
    ]
    return json.dumps({"facts": facts, "unit": "us", "rows": rows}, indent=1) + "\n"


def as_markdown(results: Sequence[RowResult], facts: dict[str, str]) -> str:
    """TFLOP/s a row and contender, and the first contender's ratio to each; the best of a row is bold."""
    names = [timed.contender for timed in results[0].timed]
    head = ["pass", "head_dim", "batch", "heads q/kv", "seqlen", "mask", *names, *(f"/ {peer}" for peer in names[1:])]
    lines = [
        *facts_lines(facts),
        "",
        f"TFLOP/s, median of interleaved samples; then {names[0]}'s ratio to each peer. A backward row times the "
        "backward pass alone, and counts 2.5 times the forward's FLOPs.",
        "",
        *table_lines(head, map(_cells, results)),
        *gap_lines(results),
    ]
    return "\n".join(lines) + "\n"


def facts_lines(facts: dict[str, str]) -> list[str]:
    return [f"{name}: {value}  " for name, value in facts.items()]


def table_lines(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return ["| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *rows)]


def gap_lines(results: Sequence[RowResult]) -> list[str]:
    """Who was not timed, or not counted, and why; each reason once."""
    timed = {f"{each.contender}: {each.missing}" for result in results for each in result.timed if each.missing}
    counted = {f"{each.contender}: {each.missing}" for result in results for each in result.counted if each.missing}
    return [
        line
        for title, gaps in (("Not timed:", timed), ("Not counted:", counted))
        if gaps
        for line in ("", title, "", *(f"- {gap}" for gap in sorted(gaps)))
    ]


def _cells(result: RowResult) -> list[str]:
    sizes, spec = result.row.workload, result.row.spec
    rates = result.rates()
    best, ours = max(filter(None, rates), default=None), rates[0]
    heads = f"{sizes.heads_q}/{sizes.heads_kv}"
    cells = [result.row.passes, str(spec.head_dim), str(sizes.batch), heads, str(sizes.seqlen_k), spec.mask]
    cells += ["-" if rate is None else f"**{rate:.0f}**" if rate == best else f"{rate:.0f}" for rate in rates]
    return cells + ["-" if rate is None or ours is None else f"{ours / rate:.2f}" for rate in rates[1:]]
