"""What only the compiler shows: every kernel compiles, for sizes that Triton specialises on too."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, TypedDict

import pytest

from flashgen.compiler.crosscompile import compile_many
from flashgen.hardware.lookup import find_gpu
from flashgen.outcome import Rejected
from flashgen.spec import Dtype
from tests.kernels.emission import (
    Emitter,
    content_of,
    every_backward_kernel,
    every_feature_kernel,
    every_kernel,
    rows_of,
    training_rows_of,
)

COMPILE_ONLY = Path(__file__).with_name("compile_only.py")
BLOCKS = ["BLOCK_M", "BLOCK_N", "BLOCK_D", "BLOCK_DV", "HEADS_PER_GROUP"]


class Report(TypedDict):
    kernel: str
    sizes: list[int]
    constexprs: list[str]
    error: str | None


def compile_only(path: Path, gpu: str, sizes: list[tuple[int, ...]]) -> list[Report]:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, str(COMPILE_ONLY), str(path), gpu, json.dumps(sizes)],
        env=environment | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    reports: list[Report] = json.loads(done.stdout)
    return reports


# fp32 compiles slowly and has the same lines but for the precision of its dots. Of the kernels with features and of the
# backward pass every seventh, which meets each structure in turn.
@pytest.mark.slow
@pytest.mark.case("emit-11")
@pytest.mark.parametrize(
    ("gpu", "dtype", "every"),
    [("nvidia-h200", "fp16", 1), ("nvidia-h200", "fp32", 7), ("nvidia-a100", "bf16", 3)],
)
def test_every_kernel_compiles(gpu: str, dtype: Dtype, every: int) -> None:
    target = find_gpu(gpu)
    pairs: list[Any] = list(every_kernel(dtype, tma=(False, True) if target.has_tma else (False,)))[::every]
    others = [*every_feature_kernel(dtype), *every_backward_kernel(dtype)][:: 7 * every]
    pairs += [(spec, config) for spec, config in others if target.has_tma or not config.tma]
    answers = dict(compile_many(pairs, target, jobs=1))
    assert len(answers) == len(pairs)
    refused = {f"{pairs[i][0].key} {pairs[i][1].key}": a.detail for i, a in answers.items() if isinstance(a, Rejected)}
    assert not refused


@pytest.mark.case("tail-04")
@pytest.mark.case("emit-04")
def test_sizes_of_one_compile(emitter: Emitter) -> None:
    """Triton makes a constant of an integer argument that is 1; the constexprs are those annotated, no more."""
    path = emitter.write(content_of(rows_of(("fp16",), 16, block_m=16)))
    reports = compile_only(path, "nvidia-a100", [(1, 1, 1, 1, 1), (1, 2, 2, 7, 7), (2, 1, 1, 1, 3)])
    assert len(reports) == 4 * 3
    for report in reports:
        assert report["error"] is None, report
        assert report["constexprs"] == BLOCKS


@pytest.mark.case("tail-04")
@pytest.mark.case("emit-04")
@pytest.mark.case("emit-11")
def test_sizes_of_one_compile_in_the_backward_pass(emitter: Emitter) -> None:
    variants = ("window_softcap", "full_alibi_bias_sink_dropout")
    path = emitter.write(content_of(training_rows_of(("fp16",), 16, variants=variants)))
    reports = compile_only(path, "nvidia-a100", [(1, 1, 1, 1, 1)])
    roles = ["fwd", "bwd_prepare", "bwd_dkdv", "bwd_dq"]
    assert [report["error"] for report in reports] == [None] * (2 * len(roles))
    assert all(any(report["kernel"].startswith(f"_attn_{role}") for report in reports) for role in roles)


@pytest.mark.case("dim-07")
def test_head_dims_below_what_a_dot_takes_compile(emitter: Emitter) -> None:
    rows = [rows_of(("fp16",), head_dim, variants=("causal", "window_softcap"), block_m=16) for head_dim in (1, 8)]
    reports = compile_only(emitter.write(content_of(rows[0] + rows[1])), "nvidia-h200", [(1, 1, 1, 5, 7)])
    assert len(reports) == 4
    for report in reports:
        assert report["error"] is None, report
        assert report["constexprs"] == ["HEAD_DIM", "HEAD_DIM_V", *BLOCKS]


@pytest.mark.case("emit-04")
def test_tma_and_persistent_kernels_have_the_same_constexprs(emitter: Emitter) -> None:
    rows = rows_of(("bf16",), 16, block_m=16, tma=True, programs_per_sm=1, longest_first=True)
    for report in compile_only(emitter.write(content_of(rows)), "nvidia-h200", [(2, 4, 2, 40, 48)]):
        assert report["error"] is None, report
        assert report["constexprs"] == BLOCKS
