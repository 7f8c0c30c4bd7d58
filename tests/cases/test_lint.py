"""Emitted text passes the repository's own linter and formatter, whatever combination of features it holds."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest

from flashgen.codegen.module import ModuleContent, Row, render_module
from flashgen.spec import Dtype
from tests.kernels.emission import (
    FEATURES,
    TL_DTYPES,
    VARIANTS,
    backward_rows_of,
    content_of,
    every_backward_kernel,
    every_feature_kernel,
    every_gluon_kernel,
    every_kernel,
    gluon_backward_rows_of,
    gluon_rows_of,
    rows_of,
    training_rows_of,
)

ROOT = Path(__file__).parents[2]
HALF: tuple[Dtype, Dtype] = ("bf16", "fp16")


def modules() -> Iterator[tuple[str, ModuleContent]]:
    """Modules that differ in what their frame holds: masks, GPUs, launch options, and how much of each."""
    for variant in VARIANTS:
        yield f"only_{variant}", content_of(rows_of(HALF, 64, variants=(variant,)))
    yield "no_window", content_of(rows_of(HALF, 64, variants=("full", "causal")))
    tuned = rows_of(HALF, 64, tma=True, programs_per_sm=2, heads_per_group=4, maxnreg=168, longest_first=True)
    yield "every_knob", content_of(rows_of(HALF, 64), tuned)
    yield "registers", content_of(rows_of(HALF, 64, maxnreg=128))
    by_length = tuple(replace(row, max_seqlen_k=limit) for row in rows_of(HALF, 64) for limit in (1024, None))
    yield "by_length", content_of(by_length)
    yield "three_dtypes", content_of(rows_of(HALF, 64) + rows_of(("fp32",), 64))
    many = tuple(row for head_dim in range(8, 264, 8) for row in rows_of(HALF, head_dim))
    yield "many_head_dims", content_of(many)
    pairs = tuple(row for d in range(8, 264, 8) for row in rows_of(HALF, d, 128, variants=("full", "causal")))
    yield "many_pairs", content_of(pairs)
    two = content_of(rows_of(HALF, 64), tuned)
    other = replace(
        two.gpus[0], slug="nvidia-rtx-pro-6000-blackwell-max-q-workstation-edition", pattern="NVIDIA RTX PRO.*"
    )
    yield "two_gpus", replace(two, gpus=(*two.gpus, other))
    for held in (subset for size in range(5) for subset in combinations(FEATURES, size)):
        name, ending = "_".join(held) or "no_features", "".join(f"_{feature}" for feature in held)
        variants = [mask + ending for mask in VARIANTS]
        yield f"forward_{name}", content_of(rows_of(HALF, 64, variants=variants))
        yield f"training_{name}", content_of(training_rows_of(HALF, 64, variants=variants))
        for mask in ("full", "causal", "window"):  # as a candidate is
            yield f"backward_{mask}_{name}", content_of(backward_rows_of(("bf16",), 64, variants=[mask + ending]))
    separate = tuple(f"{mask}_{feature}" for mask in ("full", "causal") for feature in FEATURES)
    yield "one_feature_at_a_time", content_of(training_rows_of(HALF, 64, variants=("full", "causal", *separate)))
    merged = backward_rows_of(HALF, 64, kept=64, step=64, num_stages=2, tma=True, merged=True, dp_first=True)
    yield "merged", content_of(training_rows_of(HALF, 64), (*tuned, *merged))
    yield "split", content_of(training_rows_of(HALF, 64), backward_rows_of(HALF, 64, tma=True))
    for name, gluon in gluon_rows_of(HALF).items():
        yield f"gluon_{name}", content_of(rows_of(HALF, 64), gluon)
        yield f"gluon_training_{name}", content_of(training_rows_of(HALF, 64), (*gluon, *merged))
        both = (*gluon, *gluon_backward_rows_of(HALF))
        yield f"gluon_both_passes_{name}", content_of(training_rows_of(HALF, 64), both)
    held = tuple(f"full_{feature}" for feature in FEATURES)
    featured = training_rows_of(HALF, 64, variants=("full", "causal", "window", *held))
    yield "gluon_beside_features", content_of(featured, both)
    yield "gluon_backward", content_of(training_rows_of(HALF, 64), gluon_backward_rows_of(HALF))
    some = gluon_backward_rows_of(HALF, causal={"dq_as_held": True}, window={"dq_as_held": True})
    yield "gluon_some_as_held", content_of(featured, (*gluon, *some))
    stays = gluon_backward_rows_of(HALF, full={"programs_per_sm": 1})
    yield "gluon_some_persistent", content_of(featured, (*gluon, *stays))
    yield "gluon_backward_persistent", content_of(training_rows_of(HALF, 64), stays)
    for spec, config in every_gluon_kernel("bf16"):
        yield f"gluon_{spec.key}_{config.digest}", content_of((Row(spec=spec, dtypes=("bf16",), config=config),))
    for name, gluon in gluon_rows_of(("fp8",)).items():
        yield f"fp8_{name}", content_of(gluon)
        yield f"fp8_beside_others_{name}", content_of(rows_of(HALF, 64), (*gluon_rows_of(HALF)[name], *gluon))
        yield f"fp8_training_{name}", content_of(featured, (*both, *gluon))
    for spec, config in [each for each in every_gluon_kernel("fp8") if each[0].op == "forward"][::5]:
        yield f"gluon_{spec.key}_{config.digest}", content_of((Row(spec=spec, dtypes=("fp8",), config=config),))
    yield "long_facts", replace(two, facts=("A fact.", "", "Another, after a blank line."), command="flashgen emit")


def run_ruff(*arguments: str, directory: Path) -> str:
    """Its output; empty where it has nothing to say."""
    command = [
        sys.executable,
        "-m",
        "ruff",
        *arguments,
        "--config",
        str(ROOT / "pyproject.toml"),
        "--no-cache",
        "--quiet",
    ]
    done = subprocess.run([*command, str(directory)], capture_output=True, text=True, timeout=120)
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A module a kernel, in a directory."""
    directory = tmp_path_factory.mktemp("kernels")
    for dtype in TL_DTYPES:
        every = (*every_kernel(dtype), *every_feature_kernel(dtype), *every_backward_kernel(dtype))
        for i, (spec, config) in enumerate(every):
            content = content_of((Row(spec=spec, dtypes=(dtype,), config=config),))
            (directory / f"{dtype}_{i}.py").write_text(render_module(content))
    return directory


@pytest.fixture(scope="module")
def frames(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("frames")
    for name, content in modules():
        (directory / f"{name}.py").write_text(render_module(content))
    return directory


@pytest.mark.case("grad-10")
@pytest.mark.parametrize("arguments", [("check",), ("format", "--diff")], ids=" ".join)
def test_every_kernel_is_clean(arguments: tuple[str, ...], kernels: Path) -> None:
    assert len(list(kernels.iterdir())) == 696
    assert run_ruff(*arguments, directory=kernels) == ""


@pytest.mark.case("grad-10")
@pytest.mark.parametrize("arguments", [("check",), ("format", "--diff")], ids=" ".join)
def test_every_frame_is_clean(arguments: tuple[str, ...], frames: Path) -> None:
    assert run_ruff(*arguments, directory=frames) == ""


def test_ruff_would_have_said_something(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("import os\nx = undefined\ny  =  1\n")
    assert "undefined" in run_ruff("check", directory=tmp_path)
    assert "y = 1" in run_ruff("format", "--diff", directory=tmp_path)
