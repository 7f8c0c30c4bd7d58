"""SRAM bound, occupancy and cost model: arithmetic that can be checked by hand."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from flashgen.families import TL, TL_BACKWARD, TlBackwardConfig, TlConfig
from flashgen.hardware.lookup import find_gpu
from flashgen.hardware.target import GpuTarget
from flashgen.outcome import Reason, Resources
from flashgen.resources.cost import predict, programs, step_cost, steps
from flashgen.resources.fit import H200 as FIT
from flashgen.resources.fit import HELD_OUT
from flashgen.resources.occupancy import blocks_per_sm
from flashgen.resources.sram import exceeds, sram_bound
from flashgen.spec import AttentionSpec, Workload
from flashgen.variants import with_variant

H200, A100 = find_gpu("h200"), find_gpu("a100")
SPEC = AttentionSpec(dtype="bf16", head_dim=128, head_dim_v=128)
CONFIG = TlConfig(BLOCK_M=128, BLOCK_N=64, num_warps=8, num_stages=3)
BACKWARD = replace(SPEC, op="backward")
PASSES = TlBackwardConfig(
    BLOCK_M=64,
    BLOCK_N=128,
    num_warps=8,
    num_stages=2,
    BLOCK_M_DQ=128,
    BLOCK_N_DQ=32,
    num_warps_dq=4,
    num_stages_dq=3,
)
DKDV, DQ = TL_BACKWARD.passes(BACKWARD, PASSES)
NEEDS = Resources(shared_bytes=131_072, registers=140, spill_bytes=0, num_warps=8)
SIZES = Workload(batch=4, heads_q=16, heads_kv=16, seqlen_q=4096, seqlen_k=4096)
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SWEEP = BENCHMARKS / "data" / "sweep-nvidia-h200.json"
CHECK = BENCHMARKS / "cost-model.json"


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
    (shape,) = TL.passes(SPEC, CONFIG)
    full, causal = steps(SPEC, shape, SIZES), steps(replace(SPEC, causal=True), shape, SIZES)
    assert full == 4 * 16 * 32 * 64
    assert full / 2 < causal < full * 0.55


def test_a_pass_that_keeps_keys_steps_over_the_queries_of_a_whole_group() -> None:
    grouped = replace(SIZES, heads_kv=4, seqlen_q=1024)
    assert (programs(DKDV, grouped), programs(DQ, grouped)) == (4 * 4 * 32, 4 * 16 * 8)
    assert steps(BACKWARD, DKDV, grouped) == 4 * 4 * 32 * (4 * 1024 // 64)
    assert steps(BACKWARD, DQ, grouped) == 4 * 16 * 8 * (4096 // 32)
    causal = replace(BACKWARD, causal=True)
    assert steps(causal, DKDV, SIZES) == pytest.approx(4 * 16 * 32 * (4096 / 2 + 128 / 2) / 64, rel=0.02)


def test_the_passes_of_a_backward_have_four_and_three_matmuls_a_step() -> None:
    (forward,) = TL.passes(SPEC, replace(CONFIG, BLOCK_M=64, BLOCK_N=128))
    one = step_cost(SPEC, CONFIG, forward, H200, NEEDS).mma / 2  # matmul of a 64 x 128 tile
    assert step_cost(BACKWARD, PASSES, DKDV, H200, NEEDS).mma == pytest.approx(4 * one)
    assert step_cost(BACKWARD, PASSES, DQ, H200, NEEDS).mma == pytest.approx(3 * one * (128 * 32) / (64 * 128))


@pytest.mark.parametrize("variant", ["full_alibi", "full_bias", "full_dropout", "full_softcap"])
@pytest.mark.parametrize("spec", [SPEC, BACKWARD])
def test_a_feature_costs_time_on_the_scores_and_none_in_the_matmuls(spec: AttentionSpec, variant: str) -> None:
    config, shape = (PASSES, DQ) if spec is BACKWARD else (CONFIG, TL.passes(spec, CONFIG)[0])
    plain = step_cost(spec, config, shape, H200, NEEDS)
    found = step_cost(with_variant(spec, variant), config, shape, H200, NEEDS)
    assert found.softmax > plain.softmax
    assert found.mma == plain.mma
    assert (found.addresses > plain.addresses) == (variant == "full_bias")


def test_the_time_of_a_backward_is_that_of_its_passes_whose_units_overlap() -> None:
    """More than the matmuls of both passes, and less than all work of both, one thing after another."""
    found = predict(BACKWARD, PASSES, H200, SIZES, NEEDS)
    costs = [(step_cost(BACKWARD, PASSES, shape, H200, NEEDS), steps(BACKWARD, shape, SIZES)) for shape in (DKDV, DQ)]
    us_a_cycle = 1e6 / H200.sm_count / H200.clock_hz
    assert found.us > sum(cost.mma * count for cost, count in costs) * us_a_cycle
    assert found.us < sum((cost.alone + cost.mma) * count for cost, count in costs) * us_a_cycle
    assert found.us > SIZES.flops(BACKWARD) / H200.bf16_flops * 1e6


def test_the_bound_of_a_backward_is_that_of_its_larger_pass() -> None:
    assert sram_bound(BACKWARD, PASSES, H200) == 128 * 256 * 2 + 2 * 64 * 256 * 2  # K and V, two stages of Q and dO
    larger_dq = replace(PASSES, num_stages_dq=4, BLOCK_N_DQ=128)
    assert sram_bound(BACKWARD, larger_dq, H200) == 128 * 256 * 2 + 4 * 128 * 256 * 2


def test_prediction_is_never_faster_than_the_roofline() -> None:
    found = predict(SPEC, CONFIG, H200, SIZES, NEEDS)
    assert found.us > SIZES.flops(SPEC) / H200.bf16_flops * 1e6
    spilled = predict(SPEC, CONFIG, H200, SIZES, replace(NEEDS, spill_bytes=200))
    assert spilled.us > found.us


def test_what_one_block_waits_for_is_filled_by_others() -> None:
    alone = predict(SPEC, CONFIG, H200, SIZES, NEEDS)
    three = predict(SPEC, CONFIG, H200, SIZES, replace(NEEDS, shared_bytes=70_000, registers=80))
    (shape,) = TL.passes(SPEC, CONFIG)
    cost = step_cost(SPEC, CONFIG, shape, H200, NEEDS)
    assert (alone.bound, three.bound) == ("latency", "mma" if cost.mma > cost.vector else "softmax")
    assert three.us < 0.8 * alone.us


def test_a_deeper_pipeline_hides_loads() -> None:
    (shape,) = TL.passes(SPEC, CONFIG)
    waits = [step_cost(SPEC, CONFIG, replace(shape, num_stages=n), H200, NEEDS).load for n in (1, 2, 3)]
    arrival = 64 * 256 * 2 / 64  # bytes of K and V over the L2's bytes a clock
    assert waits == [arrival + FIT.unpipelined, arrival + FIT.latency, 0]


@pytest.mark.parametrize(("target", "tma", "counts"), [(H200, True, False), (H200, False, True), (A100, True, True)])
def test_pointers_cost_addresses(target: GpuTarget, tma: bool, counts: bool) -> None:
    config = replace(CONFIG, tma=tma)
    (shape,) = TL.passes(SPEC, config)
    found = step_cost(SPEC, config, shape, target, NEEDS).addresses
    assert found == (FIT.address * 64 * 256 / 128 if counts else 0)


def test_the_check_that_is_committed_is_of_these_constants() -> None:
    document = json.loads(CHECK.read_text())
    assert document["constants"] == asdict(FIT)
    assert document["worst"] == asdict(HELD_OUT)
    held_out = [order for name in ("spec", "head_dim") for order in document["left_out"][name]]
    assert len({order["table"].split(",")[0] for order in held_out}) == HELD_OUT.specs
    assert max(order["top5_regret"] for order in held_out) == HELD_OUT.top5_regret <= 0.05
    assert max(order["first_regret"] for order in held_out) == HELD_OUT.first_regret
    assert min(order["rank_correlation"] for order in held_out) == HELD_OUT.rank_correlation


def test_of_the_five_configs_that_the_model_likes_best_one_is_near_the_best_that_was_measured() -> None:
    rows = json.loads(SWEEP.read_text())["rows"]
    keys = {row["spec"] for row in rows}
    for key in keys:
        _, dtype, head, mask = key.split("-")
        d = int(head[1:])
        spec = AttentionSpec(dtype=dtype, head_dim=d, head_dim_v=d, causal=mask == "causal")
        sizes = replace(SIZES, heads_q=2048 // d, heads_kv=2048 // d)
        own = [
            (row["us"], TL.config(row["config"]), Resources(**row["resources"])) for row in rows if row["spec"] == key
        ]
        own.sort(key=lambda each: predict(spec, each[1], H200, sizes, each[2]).us)
        assert min(us for us, *_ in own[:5]) <= 1.05 * min(us for us, *_ in own), key


def test_one_query_is_bound_by_memory() -> None:
    needs = Resources(shared_bytes=50_000, registers=100, spill_bytes=0, num_warps=4)
    decode = Workload(batch=64, heads_q=32, heads_kv=32, seqlen_q=1, seqlen_k=8192)
    config = TlConfig(BLOCK_M=16, BLOCK_N=64, num_warps=1, num_stages=2)
    assert predict(SPEC, config, H200, decode, needs).us >= decode.min_bytes(SPEC) / H200.hbm_bytes_per_s * 1e6
