"""The back-end without a GPU: guesses before compiling, and the order of predictions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flashgen.families import TL, TL_BACKWARD
from flashgen.outcome import Prediction, Proof, Reason, Rejected, Resources
from flashgen.resources.limits import MAX_SPILL_BYTES
from flashgen.tune import predicted
from flashgen.tune.predicted import PredictedStages, estimate, promising
from flashgen.tune.stages import Candidate, Compiled
from tests.tune.replay import H200, WORKLOAD, config, spec_of

SPEC = spec_of(causal=True)


def test_promising_configs_are_few_fixed_and_from_the_space() -> None:
    space = list(TL.space(SPEC, H200))
    chosen = promising(space, SPEC, H200, (WORKLOAD,), 8)
    assert len(set(chosen)) == 8
    assert set(chosen) <= set(space)
    assert chosen == promising(space[::-1], SPEC, H200, (WORKLOAD,), 8)


def test_promising_configs_differ_in_what_the_model_sees() -> None:
    chosen = promising(list(TL.space(SPEC, H200)), SPEC, H200, (WORKLOAD,), 8)
    assert {each.knobs()["heads_per_group"] for each in chosen} == {1}


def test_configs_that_seem_to_spill_come_last_among_the_promising() -> None:
    fits, spills = config(64, 64, 4, 3), config(256, 128, 4, 3)
    assert estimate(SPEC, spills, H200).spill_bytes > MAX_SPILL_BYTES
    slow = config(64, 32, 4, 1)
    assert promising([spills, fits, slow], SPEC, H200, (WORKLOAD,), 3) == [fits, slow, spills]


def test_a_tile_that_registers_cannot_hold_is_guessed_to_spill() -> None:
    large, small = (estimate(SPEC, config(m, 128, 4), H200) for m in (256, 64))
    assert large.registers == 255
    assert large.spill_bytes > 0 == small.spill_bytes
    capped = estimate(SPEC, config(128, 64, 8, maxnreg=128), H200)
    assert capped.registers <= 128


def test_the_estimate_of_a_backward_is_that_of_its_larger_pass() -> None:
    spec, passes = spec_of(causal=True, op="backward"), TL_BACKWARD.likely_good(spec_of(op="backward"), H200)[0]
    found = estimate(spec, passes, H200)
    wider = estimate(spec, replace(passes, BLOCK_M_DQ=128, num_warps_dq=8), H200)
    assert found.num_warps == passes.num_warps == 4
    assert wider.num_warps == 8
    assert wider.shared_bytes > found.shared_bytes
    # Two accumulators of 128 columns, and of every score P in two widths and dP, for 64 keys in 128 threads.
    assert found.registers == 40 + 64 * (256 + 64 + 32 + 64) // 128


def test_promising_configs_of_a_backward_fit_and_do_not_spill() -> None:
    spec = spec_of(op="backward")
    chosen = promising(list(TL_BACKWARD.space(spec, H200)), spec, H200, (WORKLOAD,), 8)
    assert len(set(chosen)) == 8
    for each in chosen:
        guess = estimate(spec, each, H200)
        assert guess.spill_bytes == 0
        assert guess.shared_bytes <= H200.smem_per_block


@pytest.mark.parametrize("count", [1, 3])
def test_times_are_predictions_one_a_workload(count: int) -> None:
    stages = PredictedStages(H200, (WORKLOAD,) * count, jobs=1, seed=0)
    resources = Resources(shared_bytes=100_000, registers=168, spill_bytes=0, num_warps=8)
    compiled = Compiled(candidate=Candidate(SPEC, config()), resources=resources)
    times = stages.glance(compiled, 0.0)
    assert isinstance(times, tuple)
    assert len(times) == count
    assert all(isinstance(time, Prediction) for time in times)
    assert stages.time([compiled, compiled]) == [times, times]
    assert stages.kind == "predicted"


@pytest.mark.case("num-11")
@pytest.mark.slow
def test_a_bf16_kernel_is_shown_by_its_fp16_twin_in_the_interpreter() -> None:
    stages = PredictedStages(H200, (WORKLOAD,), jobs=1, seed=5)
    proof = stages.prove(Candidate(spec_of("bf16", head_dim=16), config(64, 32, 4)))
    assert isinstance(proof, Proof), proof
    assert (proof.where, proof.dtypes, proof.seed) == ("interpreter", ("fp16",), 5)
    assert proof.probes > 20
    assert 0 < proof.worst_ratio <= 1


def test_without_a_proof_there_is_no_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    strays = Rejected(reason=Reason.INEXACT, detail="strays")
    monkeypatch.setattr(predicted, "prove_in_interpreter", lambda *given, **options: strays)
    stages = PredictedStages(H200, (WORKLOAD,), jobs=1, seed=5)
    assert stages.prove(Candidate(SPEC, config())) == strays
