"""Results as files: every sample in JSON, and a Markdown table of medians with the command that made it."""

from __future__ import annotations

import json
from collections.abc import Sequence
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


def as_json(results: Sequence[RowResult], facts: dict[str, str]) -> str:
    """`facts` name the GPU, the versions and the command."""
    rows = [
        {
            "spec": result.row.spec.key,
            "workload": result.row.workload.key,
            "timed": [asdict(timed) for timed in result.timed],
        }
        for result in results
    ]
    return json.dumps({"facts": facts, "unit": "us", "rows": rows}, indent=1) + "\n"


def as_markdown(results: Sequence[RowResult], facts: dict[str, str]) -> str:
    """TFLOP/s a row and contender, and flashgen's ratio to each; the best of a row is bold."""
    names = [timed.contender for timed in results[0].timed]
    peers = names[1:]
    head = ["head_dim", "batch", "heads q/kv", "seqlen", "mask", *names, *(f"/ {peer}" for peer in peers)]
    lines = [f"{name}: {value}  " for name, value in facts.items()]
    lines += ["", f"TFLOP/s, median of interleaved samples; then {names[0]}'s ratio to each peer.", ""]
    lines += ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(_cells(result)) + " |" for result in results]
    gaps = sorted({f"{t.contender}: {t.missing}" for result in results for t in result.timed if t.missing})
    return "\n".join([*lines, *(["", "Not timed:", *(f"- {gap}" for gap in gaps)] if gaps else [])]) + "\n"


def _cells(result: RowResult) -> list[str]:
    sizes, spec = result.row.workload, result.row.spec
    rates = {timed.contender: result.tflops(timed) for timed in result.timed if timed.rounds}
    best = max(rates.values(), default=0.0)
    ours = rates.get(result.timed[0].contender)
    cells = [str(spec.head_dim), str(sizes.batch), f"{sizes.heads_q}/{sizes.heads_kv}", str(sizes.seqlen_k), spec.mask]
    for timed in result.timed:
        rate = rates.get(timed.contender)
        cells.append("-" if rate is None else f"**{rate:.0f}**" if rate == best else f"{rate:.0f}")
    for timed in result.timed[1:]:
        rate = rates.get(timed.contender)
        cells.append("-" if rate is None or ours is None else f"{ours / rate:.2f}")
    return cells
