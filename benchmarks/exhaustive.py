"""Times every config of a restricted space on this machine's GPU: the table that searches are judged by, and one that
the cost model is fitted to.

    python benchmarks/exhaustive.py --out benchmarks/data/exhaustive-nvidia-h200-d128-causal.json
    python benchmarks/search_honesty.py benchmarks/data/exhaustive-nvidia-h200-d128-causal.json

The space is that of family tl with one program a tile, tiles with most keys first, heads one by one and no register
cap: what is left is BLOCK_M, BLOCK_N, num_warps, num_stages and tma.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from flashgen.compiler.toolchain import toolchain
from flashgen.families import TL, TlConfig
from flashgen.hardware.resolve import resolve
from flashgen.outcome import Rejected
from flashgen.resources.limits import over_limit
from flashgen.spec import AttentionSpec, Workload
from flashgen.tune.evaluate import usable
from flashgen.tune.measured import MeasuredStages
from flashgen.tune.stages import Candidate, Compiled, score_us

SPEC = AttentionSpec(dtype="bf16", head_dim=128, head_dim_v=128, causal=True)
WORKLOAD = Workload(batch=4, heads_q=16, heads_kv=16, seqlen_q=4096, seqlen_k=4096)


def restricted(config: TlConfig) -> bool:
    return (
        config.programs_per_sm == 0 and config.longest_first and config.heads_per_group == 1 and config.maxnreg is None
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out
    found = resolve("auto", require_gpu=True)
    target, began = found.target, time.perf_counter()
    configs = [c for c in TL.space(SPEC, target) if isinstance(c, TlConfig) and restricted(c)]
    candidates = [Candidate(SPEC, config) for config in configs]
    stages = MeasuredStages(target, found.index or 0, (WORKLOAD,), jobs=os.cpu_count() or 1, seed=0)
    rows: list[dict[str, Any]] = []
    for index, answer in sorted(stages.compile(candidates)):
        rejected = answer if isinstance(answer, Rejected) else over_limit(answer, target)
        if rejected is None and not isinstance(answer, Rejected):
            times = usable(stages.glance(Compiled(candidate=candidates[index], resources=answer), float("inf")))
            rejected = times if isinstance(times, Rejected) else None
            us = None if isinstance(times, Rejected) else round(score_us(times), 2)
        rows.append(
            {
                "config": configs[index].knobs(),
                "us": None if rejected else us,
                "reason": rejected and rejected.reason,
                "resources": None if rejected or isinstance(answer, Rejected) else asdict(answer),
            }
        )
    versions = toolchain()
    document = {
        "command": f"python benchmarks/exhaustive.py --out {out.name}",
        "gpu": target.slug,
        "spec": SPEC.key,
        "workload": WORKLOAD.key,
        "triton": versions.triton,
        "torch": versions.torch,
        "wall_s": round(time.perf_counter() - began, 1),
        "rows": rows,
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(document, indent=1) + "\n")
    timed = [row["us"] for row in rows if row["us"]]
    print(f"{len(rows)} configs, {len(timed)} timed, best {min(timed)} us, {document['wall_s']} s")


if __name__ == "__main__":
    main()
