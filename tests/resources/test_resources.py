"""SRAM bound, occupancy and cost model: arithmetic that can be checked by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from flashgen.families import TL, TlConfig
from flashgen.hardware.lookup import find_gpu
from flashgen.outcome import Reason, Resources
from flashgen.resources.cost import predict, steps
from flashgen.resources.occupancy import blocks_per_sm
from flashgen.resources.sram import exceeds, sram_bound
from flashgen.spec import AttentionSpec, Workload

H200, A100 = find_gpu("h200"), find_gpu("a100")
SPEC = AttentionSpec(dtype="bf16", head_dim=128, head_dim_v=128)
CONFIG = TlConfig(BLOCK_M=128, BLOCK_N=64, num_warps=8, num_stages=3)
SIZES = Workload(batch=4, heads_q=16, heads_kv=16, seqlen_q=4096, seqlen_k=4096)
SWEEP = Path(__file__).parents[2] / "benchmarks" / "data" / "sweep-nvidia-h200.json"


def test_bound_is_q_and_three_stages_of_k_and_v_on_hopper() -> None:
    assert sram_bound(SPEC, CONFIG, H200) == 128 * 128 * 2 + 3 * 2 * (64 * 128 * 2)


def test_bound_is_one_stage_less_and_no_q_before_hopper() -> None:
    assert sram_bound(SPEC, CONFIG, A100) == 2 * 2 * (64 * 128 * 2)


def test_bound_never_exceeds_what_the_compiler_took_in_the_measured_sweep() -> None:
    rows = json.loads(SWEEP.read_text())["rows"]
    assert len(rows) > 100
    for row in rows:
        _, dtype, head, mask = row["spec"].split("-")
        spec = AttentionSpec(dtype=dtype, head_dim=int(head[1:]), head_dim_v=int(head[1:]), causal=mask == "causal")
        assert sram_bound(spec, TL.config(row["config"]), H200) <= row["resources"]["shared_bytes"], row


@pytest.mark.parametrize("knob", ["BLOCK_N", "num_stages"])
def test_bound_grows_with_every_knob_that_needs_memory(knob: str) -> None:
    values = {"BLOCK_N": (32, 64, 128), "num_stages": (1, 2, 3, 4)}[knob]
    bounds = [sram_bound(SPEC, replace(CONFIG, **{knob: value}), H200) for value in values]
    assert bounds == sorted(bounds)
    assert bounds[0] < bounds[-1]


def test_what_exceeds_says_need_terms_and_limit() -> None:
    rejected = exceeds(SPEC, replace(CONFIG, BLOCK_N=128, num_stages=4), H200)
    assert rejected is not None
    assert rejected.reason == Reason.SRAM
    need = 128 * 128 * 2 + 4 * 2 * (128 * 128 * 2)
    for part in (str(need), "Q 32768", "K 131072", "V 131072", str(H200.smem_per_block), "nvidia-h200"):
        assert part in rejected.detail
    assert exceeds(SPEC, CONFIG, H200) is None


@pytest.mark.parametrize(
    ("shared", "registers", "warps", "blocks"),
    [(114_688, 168, 4, 2), (230_400, 187, 8, 1), (1, 255, 8, 1), (1, 32, 4, 16), (240_000, 32, 4, 0)],
)
def test_occupancy_is_the_scarcest_of_shared_memory_registers_and_warps(
    shared: int, registers: int, warps: int, blocks: int
) -> None:
    needs = Resources(shared_bytes=shared, registers=registers, spill_bytes=0, num_warps=warps)
    assert blocks_per_sm(needs, H200) == blocks


def test_causal_halves_the_steps_up_to_the_diagonal() -> None:
    full, causal = steps(SPEC, CONFIG, SIZES), steps(replace(SPEC, causal=True), CONFIG, SIZES)
    assert full == 4 * 16 * 32 * 64
    assert full / 2 < causal < full * 0.55


def test_prediction_is_never_faster_than_the_roofline() -> None:
    needs = Resources(shared_bytes=131_072, registers=140, spill_bytes=0, num_warps=8)
    found = predict(SPEC, CONFIG, H200, SIZES, needs)
    assert found.us > SIZES.flops(SPEC) / H200.bf16_flops * 1e6
    spilled = predict(SPEC, CONFIG, H200, SIZES, replace(needs, spill_bytes=200))
    assert spilled.us > found.us


def test_one_query_is_bound_by_memory() -> None:
    needs = Resources(shared_bytes=50_000, registers=100, spill_bytes=0, num_warps=4)
    decode = Workload(batch=64, heads_q=32, heads_kv=32, seqlen_q=1, seqlen_k=8192)
    config = TlConfig(BLOCK_M=16, BLOCK_N=64, num_warps=1, num_stages=2)
    assert predict(SPEC, config, H200, decode, needs).us >= decode.min_bytes(SPEC) / H200.hbm_bytes_per_s * 1e6
