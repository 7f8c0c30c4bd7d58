"""Times every config of a restricted space on this machine's GPU: the table that searches are judged by, and one that
the cost model is fitted to.

    python benchmarks/exhaustive.py --out benchmarks/data/exhaustive-nvidia-h200-d128-causal.json
    python benchmarks/search_honesty.py benchmarks/data/exhaustive-nvidia-h200-d128-causal.json
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flashgen.compiler.toolchain import toolchain
from flashgen.config import Knob
from flashgen.families.tl import TL, TlFamily
from flashgen.hardware.resolve import resolve
from flashgen.hardware.target import GpuTarget
from flashgen.outcome import Rejected, Resources
from flashgen.resources.limits import over_limit
from flashgen.spec import AttentionSpec, Workload
from flashgen.tune.evaluate import usable
from flashgen.tune.measured import MeasuredStages
from flashgen.tune.stages import Candidate, Compiled, Stages, score_us

SPEC = AttentionSpec(dtype="bf16", head_dim=128, head_dim_v=128, causal=True)
WORKLOAD = Workload(batch=4, heads_q=16, heads_kv=16, seqlen_q=4096, seqlen_k=4096)


class Restricted(TlFamily):
    """Family tl with one program a tile, tiles with most keys first, heads one by one and no register cap: what is left
    is BLOCK_M, BLOCK_N, num_warps, num_stages and tma."""

    def choices(self, spec: AttentionSpec, target: GpuTarget) -> dict[str, tuple[Knob, ...]]:
        fixed: dict[str, tuple[Knob, ...]] = {
            "programs_per_sm": (0,),
            "longest_first": (True,),
            "heads_per_group": (1,),
            "maxnreg": (None,),
        }
        return super().choices(spec, target) | fixed


RESTRICTED = Restricted()
# What tuners are compared on.
SPACES: dict[str, TlFamily] = {"restricted": RESTRICTED, "whole": TL}


@dataclass(frozen=True, kw_only=True, slots=True)
class Timed:
    """A candidate's median in microseconds, or why it has none."""

    candidate: Candidate
    us: float | None = None
    rejected: Rejected | None = None
    resources: Resources | None = None


def time_each(
    candidates: Sequence[Candidate],
    answers: Iterable[tuple[int, Resources | Rejected]],
    stages: Stages,
    target: GpuTarget,
) -> Iterator[Timed]:
    """Each candidate as its compiler's answer comes, by a short timing that is never cut shorter; none is proven."""
    for index, answer in answers:
        candidate = candidates[index]
        rejected = answer if isinstance(answer, Rejected) else over_limit(answer, target)
        if isinstance(answer, Rejected) or rejected is not None:
            yield Timed(candidate=candidate, rejected=rejected)
            continue
        times = usable(stages.glance(Compiled(candidate=candidate, resources=answer), float("inf")))
        if isinstance(times, Rejected):
            yield Timed(candidate=candidate, rejected=times)
        else:
            yield Timed(candidate=candidate, us=score_us(times), resources=answer)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out
    found = resolve("auto", require_gpu=True)
    target, began = found.target, time.perf_counter()
    candidates = [Candidate(SPEC, config) for config in RESTRICTED.space(SPEC, target)]
    stages = MeasuredStages(target, found.index or 0, (WORKLOAD,), jobs=os.cpu_count() or 1, seed=0)
    answers = sorted(stages.compile(candidates))  # all of them, so that nothing compiles while a kernel is timed
    rows: list[dict[str, Any]] = [
        {
            "config": timed.candidate.config.knobs(),
            "us": None if timed.us is None else round(timed.us, 2),
            "reason": timed.rejected and timed.rejected.reason,
            "resources": timed.resources and asdict(timed.resources),
        }
        for timed in time_each(candidates, answers, stages, target)
    ]
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
    measured = [row["us"] for row in rows if row["us"]]
    print(f"{len(rows)} configs, {len(measured)} timed, best {min(measured)} us, {document['wall_s']} s")


if __name__ == "__main__":
    main()
