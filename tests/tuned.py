"""Directories of tuned configs for tests: rules of small tiles, as `flashgen tune` would write them."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from pathlib import Path
from typing import Any

from flashgen.families import GLUON_SM90, TL, TL_BACKWARD, Family
from flashgen.outcome import Measurement, Prediction, Proof, Resources, Toolchain
from flashgen.spec import OPS, AttentionSpec, Op, Workload
from flashgen.store.entry import TunedEntry, TunedFile, WorkloadRange
from flashgen.store.evidence import Evidence, Timing
from flashgen.store.files import tuned_path, write_tuned
from tests.kernels.emission import VARIANTS, spec_of

_TOOLS = Toolchain(flashgen="0.1.0", triton="3.7.1", torch="2.13.0", kernels="0123456789ab")
_WORKLOAD = Workload(batch=4, heads_q=16, heads_kv=4, seqlen_q=1024, seqlen_k=1024)


FAMILY_OF: dict[Op, Family] = {"forward": TL, "backward": TL_BACKWARD}
USUAL_KNOBS: dict[Op, dict[str, Any]] = {
    "forward": {"BLOCK_M": 64, "BLOCK_N": 32, "num_warps": 4, "num_stages": 2},
    "backward": {
        "BLOCK_M": 32,
        "BLOCK_N": 64,
        "num_warps": 4,
        "num_stages": 2,
        "BLOCK_M_DQ": 64,
        "BLOCK_N_DQ": 32,
        "num_warps_dq": 4,
        "num_stages_dq": 2,
    },
}
FP8_KNOBS: dict[str, Any] = {"BLOCK_M": 128, "BLOCK_N": 64, "num_stages": 2}


def entry_of(
    spec: AttentionSpec,
    *,
    dtypes: tuple[str, ...] | None = None,
    keys: tuple[int, int | None] = (1, None),
    measured: bool = True,
    shared_bytes: int = 40960,
    toolchain: Toolchain = _TOOLS,
    **knobs: Any,
) -> TunedEntry:
    """A rule for `spec` over the numbers of `keys`; `knobs` are those that are not the usual small tile's."""
    family, usual = (GLUON_SM90, FP8_KNOBS) if spec.is_fp8 else (FAMILY_OF[spec.op], USUAL_KNOBS[spec.op])
    config = family.config(usual | knobs)
    timing = (
        Timing.measured(spec, _WORKLOAD, Measurement(median_us=100.0, low_us=99.0, high_us=101.0, samples=50))
        if measured
        else Timing.predicted(spec, _WORKLOAD, Prediction(us=90.0, bound="mma"))
    )
    kind = "measured" if measured else "predicted"
    sharing = {"bf16": ("bf16", "fp16"), "fp16": ("fp16",), "fp32": ("fp32",), "fp8": ("fp8",)}[spec.dtype]
    return TunedEntry(
        spec=spec,
        dtypes=sharing if dtypes is None else dtypes,
        workloads=WorkloadRange(seqlen_k_min=keys[0], seqlen_k_max=keys[1]),
        config=config,
        evidence=Evidence(
            kind=kind,  # type: ignore[arg-type]
            timings=(timing,),
            ties=1,
            candidates=20,
            worst_regret=0.02,
            mean_regret=0.01,
        ),
        resources=Resources(shared_bytes=shared_bytes, registers=128, spill_bytes=0, num_warps=config.num_warps),
        proof=Proof(
            suite="quick",
            suite_hash="25921e05",
            where="gpu" if measured else "interpreter",
            dtypes=("bf16", "fp16", "fp32", "fp8") if measured else ("fp16", "fp32"),
            probes=48,
            worst_ratio=0.61,
            worst_probe="ragged",
            seed=0,
            repeats=2,
        ),
        toolchain=toolchain,
    )


def file_of(gpu: str, entries: Iterable[TunedEntry], op: Op = "forward") -> TunedFile:
    return TunedFile(gpu=gpu, op=op, command=f"flashgen tune --gpu {gpu}", entries=tuple(entries))


def write_configs(directory: Path, gpu: str, *entries: TunedEntry, op: Op = "forward") -> Path:
    """Writes the rules, which are all of `op`, as `directory`/`gpu`/<op>.yaml."""
    path = tuned_path(directory, gpu, op)
    write_tuned(path, file_of(gpu, entries, op))
    return path


def usual_entries(
    *head_dims: int, dtype: str = "bf16", op: Op = "forward", variants: Iterable[str] = VARIANTS, **changes: Any
) -> list[TunedEntry]:
    """A rule for every variant of every head_dim."""
    specs = (spec_of(variant, dtype, d, op=op) for d, variant in product(head_dims, variants))  # type: ignore[arg-type]
    return [entry_of(spec, **changes) for spec in specs]


def usual_configs(directory: Path) -> Path:
    """The configs of an H200 and the portable rules for head dims 64 and 128; returns `directory`."""
    write_configs(directory, "nvidia-h200", *usual_entries(64, 128, BLOCK_M=128, tma=True, num_warps=8))
    write_configs(directory, "nvidia-h200", *usual_entries(64, 128, op="backward", tma=True), op="backward")
    for op in OPS:
        write_configs(directory, "portable", *usual_entries(64, 128, op=op, measured=False, shared_bytes=24576), op=op)
    return directory
