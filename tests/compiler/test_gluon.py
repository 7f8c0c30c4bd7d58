"""Kernels in Gluon through the compiler of the installed triton: they fit, do not spill, and overlap as they should."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import triton

from flashgen.compiler.binary import cuobjdump
from flashgen.families import FAMILIES, GLUON_TRITONS
from flashgen.hardware.lookup import find_gpu
from flashgen.outcome import Resources
from flashgen.resources.limits import MAX_SPILL_BYTES
from flashgen.resources.sram import sram_bound
from flashgen.spec import AttentionSpec

H200 = find_gpu("h200")
BARRIERS = 1024  # bytes, of barriers, alignment and what the warp groups are told
GOLDENS: list[tuple[str, tuple[int, int], dict[str, Any]]] = [
    ("full", (128, 128), {"BLOCK_M": 128, "BLOCK_N": 128}),
    ("causal", (128, 128), {"BLOCK_M": 128, "BLOCK_N": 128, "programs_per_sm": 1, "q_stages": 2, "ping_pong": True}),
    ("full", (64, 64), {"BLOCK_M": 192, "BLOCK_N": 128, "fused_scale": True, "lane_sums": True}),
    (
        "full",
        (128, 128),
        {"BLOCK_M": 128, "BLOCK_N": 128, "programs_per_sm": 1, "q_stages": 2, "own_keys": False, "pack_gqa": True}
        | {"fused_scale": True, "lane_sums": True, "rescale_first": True},
    ),
    ("window_softcap", (64, 64), {"BLOCK_M": 128, "BLOCK_N": 128, "num_stages": 3}),
    (
        "causal",
        (256, 256),
        {"BLOCK_M": 128, "BLOCK_N": 64, "lane_sums": True, "rescale_first": True, "joint_release": True},
    ),
    ("causal", (192, 128), {"BLOCK_M": 128, "BLOCK_N": 64, "programs_per_sm": 1, "pack_gqa": True}),
    ("window", (96, 96), {"BLOCK_M": 128, "BLOCK_N": 128, "programs_per_sm": 1}),
]

FP8: list[tuple[str, tuple[int, int], dict[str, Any]]] = [
    ("full", (128, 128), {"BLOCK_M": 128, "BLOCK_N": 64}),
    ("window_softcap", (64, 64), {"BLOCK_M": 128, "BLOCK_N": 128, "num_stages": 3}),
    ("causal", (256, 128), {"BLOCK_M": 128, "BLOCK_N": 64}),
]

BACKWARD: list[tuple[str, tuple[int, int], dict[str, Any]]] = [
    (
        "full",
        (128, 128),
        {"BLOCK_M": 64, "dq_later": True, "dq_as_held": True, "dk_runs_on": True, "programs_per_sm": 1},
    ),
    ("causal", (128, 128), {"BLOCK_M": 64, "dq_as_held": True, "heads_per_group": 4}),
    (
        "causal",
        (128, 128),
        {"BLOCK_M": 64, "stagger": True, "dq_later": True, "dq_as_held": True, "dk_runs_on": True, "one_ring": True},
    ),
    ("causal", (256, 256), {"BLOCK_M": 64, "BLOCK_N": 64}),
    ("full", (192, 128), {"BLOCK_M": 64, "BLOCK_N": 64}),
    (
        "causal",
        (64, 64),
        {"BLOCK_M": 64, "num_stages": 3, "dq_later": True, "programs_per_sm": 1, "heads_per_group": 8},
    ),
    ("window", (64, 64), {"BLOCK_M": 64}),
    ("full", (64, 64), {"BLOCK_M": 128, "dq_as_held": True, "programs_per_sm": 1}),
]
# A loop whose bounds are counted on, for which triton 3.6 takes what is counted for what it began as.
UNCARRIED = (
    "for i in range(num_steps):\n            step = count + i\n",
    "for step in range(count, count + num_steps):\n",
)


def knobs_of(variant: str, knobs: dict[str, Any]) -> dict[str, Any]:
    return {"num_stages": 2, "longest_first": not variant.startswith("full")} | knobs


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, tuple[Resources, Path]]]:
    """(resources, binary) of every golden's kernels, from a process that does not run under Triton's interpreter."""
    folder = tmp_path_factory.mktemp("cubins")
    asked = [
        ["gluon_sm90", variant, "bf16", *head_dims, "forward", knobs_of(variant, knobs), []]
        for variant, head_dims, knobs in GOLDENS
    ]
    asked += [
        ["gluon_sm90_backward", variant, "bf16", *head_dims, "backward", {"num_stages": 2, "BLOCK_N": 128} | knobs, []]
        for variant, head_dims, knobs in BACKWARD
    ]
    asked += [["gluon_sm90", v, "fp8", *head_dims, "forward", knobs_of(v, knobs), []] for v, head_dims, knobs in FP8]
    asked += [[*asked[len(GOLDENS) + len(BACKWARD) - 1][:-1], [UNCARRIED]]]
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    command = [sys.executable, "-W", "ignore", "-m", "tests.compiler.compile_cubins", "h200", str(folder)]
    root = Path(__file__).parents[2]
    done = subprocess.run(
        command, input=json.dumps(asked), capture_output=True, text=True, env=environment, cwd=root, timeout=600
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return [
        {name: (Resources(**each), folder / f"{index}.{name}.cubin") for name, each in json.loads(line).items()}
        for index, line in enumerate(done.stdout.splitlines())
    ]


@pytest.fixture(scope="module")
def compiled(kernels: list[dict[str, tuple[Resources, Path]]]) -> list[tuple[Resources, Path]]:
    """The same of the kernel in Gluon alone."""
    return [next(held for name, held in each.items() if "hopper" in name) for each in kernels]


def test_the_installed_triton_is_one_that_modules_run_gluon_on() -> None:
    installed = tuple(map(int, triton.__version__.split(".")[:2]))
    assert GLUON_TRITONS[0] <= installed <= GLUON_TRITONS[1]


@pytest.mark.parametrize("index", range(len(GOLDENS)), ids=[f"{variant}_{d[0]}" for variant, d, _ in GOLDENS])
def test_goldens_fit_and_overlap_softmax_with_matmuls(index: int, compiled: list[tuple[Resources, Path]]) -> None:
    variant, head_dims, knobs = GOLDENS[index]
    spec = AttentionSpec.of_variant(variant, dtype="bf16", head_dim=head_dims[0], head_dim_v=head_dims[1])
    config = FAMILIES["gluon_sm90"].config(knobs_of(variant, knobs))
    resources, cubin = compiled[index]
    bound = sram_bound(spec, config, H200)
    assert bound <= resources.shared_bytes <= min(bound + BARRIERS, H200.smem_per_block)
    assert resources.spill_bytes <= MAX_SPILL_BYTES
    assert resources.num_warps == 4 * (config.BLOCK_M // 64 + 1)
    sass = disassembled(cubin)
    assert sass.count("HGMMA") >= 4
    # The wait that lets one matmul go on: the scores are there, the output is still being multiplied.
    assert re.search(r"WARPGROUP\.DEPBAR\.LE gsb0, 0x1", sass)
    assert "UTMALDG.4D" in sass
    assert "UTMASTG.4D" in sass


@pytest.mark.parametrize("index", range(len(FP8)), ids=[f"{variant}_{d[0]}" for variant, d, _ in FP8])
def test_goldens_in_fp8_fit_and_overlap_softmax_with_matmuls(
    index: int, compiled: list[tuple[Resources, Path]]
) -> None:
    variant, head_dims, knobs = FP8[index]
    spec = AttentionSpec.of_variant(variant, dtype="fp8", head_dim=head_dims[0], head_dim_v=head_dims[1])
    config = FAMILIES["gluon_sm90"].config(knobs_of(variant, knobs))
    resources, cubin = compiled[len(GOLDENS) + len(BACKWARD) + index]
    bound = sram_bound(spec, config, H200)
    assert bound <= resources.shared_bytes <= min(bound + BARRIERS, H200.smem_per_block)
    assert resources.spill_bytes <= MAX_SPILL_BYTES
    sass = disassembled(cubin)
    assert sass.count("QGMMA") >= 4
    assert "HGMMA" not in sass
    assert re.search(r"WARPGROUP\.DEPBAR\.LE gsb0, 0x1", sass)


def test_probabilities_in_fp8_become_operands_where_they_are(compiled: list[tuple[Resources, Path]]) -> None:
    """No thread gives another any: what they exchange is what they do in bf16, for the rows' maxima and sums, which any
    number of keys has as many of."""
    assert {**FP8[0][2], "BLOCK_N": 128} == GOLDENS[0][2]
    bf16, fp8 = (disassembled(compiled[index][1]) for index in (0, len(GOLDENS) + len(BACKWARD)))
    assert fp8.count("SHFL") == bf16.count("SHFL")
    groups, places, rows, keys, threads = 2, 2, 64, 64, 128  # a block is multiplied in the loop or behind it
    assert len(re.findall(r"F2FP\S*E4M3", fp8)) == groups * places * rows * keys // threads // 2


@pytest.mark.parametrize("index", range(len(BACKWARD)), ids=[f"{variant}_{d[0]}" for variant, d, _ in BACKWARD])
def test_goldens_of_the_backward_fit_and_add_to_dq_by_tma(index: int, compiled: list[tuple[Resources, Path]]) -> None:
    variant, head_dims, knobs = BACKWARD[index]
    spec = AttentionSpec.of_variant(
        variant, dtype="bf16", head_dim=head_dims[0], head_dim_v=head_dims[1], op="backward"
    )
    config = FAMILIES["gluon_sm90_backward"].config({"num_stages": 2, "BLOCK_N": 128} | knobs)
    resources, cubin = compiled[len(GOLDENS) + index]
    bound = sram_bound(spec, config, H200)
    assert bound <= resources.shared_bytes <= min(bound + BARRIERS, H200.smem_per_block)
    assert resources.spill_bytes <= MAX_SPILL_BYTES
    sass = disassembled(cubin)
    assert sass.count("HGMMA") >= 20
    assert "UTMAREDG.4D.ADD" in sass


@pytest.mark.parametrize("index", range(len(BACKWARD)), ids=[f"{variant}_{d[0]}" for variant, d, _ in BACKWARD])
def test_the_sum_of_dq_is_zeroed_and_read_in_16_bytes_a_thread(
    index: int, kernels: list[dict[str, tuple[Resources, Path]]]
) -> None:
    held = kernels[len(GOLDENS) + index]
    row_values = {"LDG": 1, "STG": 2}  # lse; delta and lse2
    finish = "_attn_bwd_finish_held" if BACKWARD[index][2].get("dq_as_held") else "_attn_bwd_finish"
    for name, narrow in (("_attn_bwd_prepare_sum", row_values), (finish, {})):
        resources, cubin = held[name]
        assert resources.spill_bytes == 0
        accesses = re.findall(r"\b(LDG|STG)\.E(\S*)", disassembled(cubin))
        assert {kind for kind, how in accesses if how.endswith("128")} == {"LDG", "STG"}
        assert Counter(kind for kind, how in accesses if not how.endswith("128")) == narrow


def test_what_is_counted_from_tile_to_tile_is_carried(compiled: list[tuple[Resources, Path]]) -> None:
    """Else a persistent program waits, from its second tile on, for blocks that have come and gone."""
    persistent = [cubin for _, cubin in compiled[:-1] if "_persistent" in cubin.name]
    assert len(persistent) == len([1 for _, _, knobs in (*GOLDENS, *BACKWARD, *FP8) if knobs.get("programs_per_sm")])
    for cubin in persistent:
        loops = loops_over_tiles(cubin)
        assert len(loops) == 3  # of the producer and of two consumers
        assert all(re.search(r"iter_args\(.*\) -> \(i32\)", loop) for loop in loops)


@pytest.mark.skipif(not triton.__version__.startswith("3.6."), reason="seen with triton 3.6")
def test_a_count_that_is_not_carried_would_show(compiled: list[tuple[Resources, Path]]) -> None:
    loops = loops_over_tiles(compiled[-1][1])
    assert ["iter_args" in loop for loop in loops] == [True, False, False]


def loops_over_tiles(cubin: Path) -> list[str]:
    """How the outermost loops of the warp groups of a persistent kernel begin, in its ttgir."""
    return re.findall(r"^ {6}(?:%\S+ = )?scf\.for .*", cubin.with_suffix(".ttgir").read_text(), re.MULTILINE)


def disassembled(cubin: Path) -> str:
    command = [str(cuobjdump()), "--dump-sass", str(cubin)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
