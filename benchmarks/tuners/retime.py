"""The times that tuners are judged by: their configs' kernels in turn, on one clock. As a program:

python -m tuners.retime CONFIGS OUT
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from exhaustive import RESTRICTED, SPACES, SPEC, WORKLOAD

from flashgen.compiler.crosscompile import compile_many, unit_of
from flashgen.compiler.invoke import all_rules, call_of
from flashgen.compiler.load import load_source
from flashgen.config import KernelConfig
from flashgen.families.tl import TlFamily
from flashgen.hardware.resolve import Resolution, resolve
from flashgen.tune.cuda_clock import CudaClock
from flashgen.tune.timing import Call, finals, warm_up

Json = dict[str, Any]


def retime(names: Sequence[str], found: Resolution, family: TlFamily = RESTRICTED) -> dict[str, Json]:
    """The fields of each config's Measurement, or of the Rejected that says why it has none."""
    index, device = found.index or 0, f"cuda:{found.index or 0}"
    space = {config.key: config for config in family.space(SPEC, found.target)}
    ours = [space[name] for name in names if name in space]
    for _ in compile_many([(SPEC, config) for config in ours], found.target, os.cpu_count() or 1):
        pass  # in parallel, into the cache that the launches below look into
    calls = {name: _call(name, space.get(name), device) for name in names}
    clock = CudaClock(index, found.target.l2_bytes)
    warm_up(clock, next(iter(calls.values())))
    times = finals(clock, list(calls.values()))
    return {name: asdict(time) for name, time in zip(calls, times, strict=True)}


def _call(name: str, config: KernelConfig | None, device: str) -> Call:
    if config is None:
        from tuners.helion_attention import call_of as helion_call_of

        return helion_call_of(name, WORKLOAD, SPEC.head_dim)
    module = load_source(unit_of(SPEC, config).source)
    return call_of(module, all_rules(module)[0], SPEC, WORKLOAD, device, (-1, -1))


def median_us(held: Json) -> float:
    """Infinite for what has no time."""
    return float("inf") if "reason" in held else float(held["median_us"])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("configs", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--space", choices=SPACES, default="restricted")
    arguments = parser.parse_args()
    times = retime(
        json.loads(arguments.configs.read_text()), resolve("auto", require_gpu=True), SPACES[arguments.space]
    )
    arguments.out.write_text(json.dumps(times))


if __name__ == "__main__":
    main()
