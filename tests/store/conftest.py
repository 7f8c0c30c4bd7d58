"""Rules and files to test the store with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from flashgen.config import KernelConfig
from flashgen.families import TL, TL_BACKWARD
from flashgen.outcome import Measurement, Prediction, Proof, Resources, Toolchain
from flashgen.spec import AttentionSpec, Op, Workload
from flashgen.store.entry import TunedEntry, TunedFile, WorkloadRange
from flashgen.store.evidence import Evidence, Timing
from flashgen.store.yaml_text import render

MakeEntry = Callable[..., TunedEntry]
MakeFile = Callable[..., TunedFile]


def build_spec(**changes: Any) -> AttentionSpec:
    fields: dict[str, Any] = {"dtype": "bf16", "head_dim": 128, "head_dim_v": 128, "causal": True}
    return AttentionSpec(**(fields | changes))


def build_config(op: Op, block_m: int) -> KernelConfig:
    tile = {"BLOCK_M": block_m, "BLOCK_N": 64, "num_warps": 8, "num_stages": 3}
    if op == "forward":
        return TL.config(tile)
    return TL_BACKWARD.config(tile | {"BLOCK_M_DQ": 64, "BLOCK_N_DQ": 32, "num_warps_dq": 4, "num_stages_dq": 2})


def build_entry(
    *, kind: str = "measured", low: int = 1, high: int | None = None, block_m: int = 128, **spec: Any
) -> TunedEntry:
    """A rule for seqlen_k `low`..`high`; `block_m` tells the configs of two rules apart, `spec` is AttentionSpec's."""
    made = build_spec(**spec)
    workload = Workload(batch=4, heads_q=32, heads_kv=8, seqlen_q=1024, seqlen_k=1024)
    measurement = Measurement(median_us=123.456789, low_us=122.5, high_us=125, samples=100)
    timing = (
        Timing.measured(made, workload, measurement)
        if kind == "measured"
        else Timing.predicted(made, workload, Prediction(us=130.0, bound="mma"))
    )
    return TunedEntry(
        spec=made,
        dtypes=("fp32",) if made.dtype == "fp32" else ("bf16", "fp16"),
        workloads=WorkloadRange(seqlen_k_min=low, seqlen_k_max=high),
        config=build_config(made.op, block_m),
        evidence=Evidence(
            kind="measured" if kind == "measured" else "predicted",
            timings=(timing,),
            ties=2,
            candidates=240,
            worst_regret=0.013,
            mean_regret=0.004,
        ),
        resources=Resources(shared_bytes=163840, registers=168, spill_bytes=0, num_warps=8),
        proof=Proof(
            suite="tuning",
            suite_hash="25921e05",
            where="gpu",
            dtypes=("bf16", "fp16", "fp32"),
            probes=48,
            worst_ratio=0.61,
            worst_probe="on",
            seed=1,
            repeats=2,
        ),
        toolchain=Toolchain(flashgen="0.1.0", triton="3.10", torch="2.13.0+cu130", kernels="1E6"),
    )


def build_file(*entries: TunedEntry, **changes: Any) -> TunedFile:
    fields: dict[str, Any] = {"gpu": "nvidia-h200", "op": "forward", "command": "flashgen tune --gpu nvidia-h200"}
    return TunedFile(**(fields | {"entries": entries} | changes))


@pytest.fixture(scope="session")
def make_spec() -> Callable[..., AttentionSpec]:
    return build_spec


@pytest.fixture(scope="session")
def make_entry() -> MakeEntry:
    return build_entry


@pytest.fixture(scope="session")
def make_file() -> MakeFile:
    return build_file


@pytest.fixture
def tuned_text() -> str:
    """A good file of one measured rule, for tests to spoil."""
    return render(build_file(build_entry()))
