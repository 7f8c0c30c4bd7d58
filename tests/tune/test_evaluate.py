"""The gates: what each rejects, and in which order they are asked."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from flashgen.outcome import Reason, Rejected, Resources
from flashgen.resources.limits import MAX_SPILL_BYTES
from flashgen.tune.evaluate import NEAR, Evaluated, Fallen, Gate, evaluate
from flashgen.tune.records import decode, encode
from flashgen.tune.stages import Candidate
from tests.tune.replay import H200, Replay, config, rejected, spec_of

CANDIDATE = Candidate(spec_of(), config())
FITS = Resources(shared_bytes=1000, registers=128, spill_bytes=0, num_warps=8)


def fallen(outcome: Evaluated | Fallen, gate: Gate, reason: Reason) -> Fallen:
    assert isinstance(outcome, Fallen)
    assert (outcome.gate, outcome.rejected.reason) == (gate, reason)
    return outcome


def test_a_good_candidate_comes_through_with_its_proof_and_times() -> None:
    outcome = evaluate(CANDIDATE, FITS, H200, stages := Replay())
    assert isinstance(outcome, Evaluated)
    assert outcome.proven
    assert stages.proven == [(CANDIDATE, False)]
    assert outcome.us == pytest.approx(100.0)


@pytest.mark.parametrize(("best_us", "proven"), [(100 / NEAR + 0.01, True), (100 / NEAR - 0.01, False)])
def test_only_what_may_still_win_is_proven(best_us: float, proven: bool) -> None:
    outcome = evaluate(CANDIDATE, FITS, H200, stages := Replay(), best_us)
    assert isinstance(outcome, Evaluated)
    assert (outcome.proven, len(stages.proven)) == (proven, int(proven))


def test_what_does_not_compile_is_neither_proven_nor_timed() -> None:
    stages = Replay()
    fallen(evaluate(CANDIDATE, rejected(Reason.COMPILE), H200, stages), Gate.COMPILE, Reason.COMPILE)
    assert not stages.proven
    assert not stages.glanced


def test_the_compilers_bytes_are_the_gate() -> None:
    limit = H200.smem_per_block
    assert isinstance(evaluate(CANDIDATE, replace(FITS, shared_bytes=limit), H200, Replay()), Evaluated)
    outcome = evaluate(CANDIDATE, replace(FITS, shared_bytes=limit + 1), H200, Replay())
    detail = fallen(outcome, Gate.COMPILE, Reason.SRAM).rejected.detail
    assert str(limit + 1) in detail
    assert str(limit) in detail


def test_a_few_spilled_bytes_pass_and_more_do_not() -> None:
    stages = Replay()
    assert isinstance(evaluate(CANDIDATE, replace(FITS, spill_bytes=MAX_SPILL_BYTES), H200, stages), Evaluated)
    outcome = evaluate(CANDIDATE, replace(FITS, spill_bytes=MAX_SPILL_BYTES + 1), H200, stages)
    fallen(outcome, Gate.COMPILE, Reason.SPILLS)


@pytest.mark.case("tuner-16")
def test_an_inexact_candidate_falls_however_fast_it_is() -> None:
    stages = Replay(proof=lambda candidate: rejected(Reason.INEXACT), us=lambda candidate: 0.001)
    fallen(evaluate(CANDIDATE, FITS, H200, stages), Gate.PROVE, Reason.INEXACT)


def test_predictions_wait_for_their_proofs() -> None:
    stages = Replay(kind="predicted")
    outcome = evaluate(CANDIDATE, FITS, H200, stages)
    assert isinstance(outcome, Evaluated)
    assert not outcome.proven
    assert not stages.proven


@pytest.mark.case("tuner-14")
@pytest.mark.parametrize("us", [0.0, -3.0, math.nan, math.inf, -math.inf])
def test_a_time_that_is_no_time_is_a_rejection(us: float) -> None:
    outcome = evaluate(CANDIDATE, FITS, H200, Replay(us=lambda candidate: us))
    fallen(outcome, Gate.TIME, Reason.TIMING)


@pytest.mark.parametrize("kind", ["measured", "predicted"])
def test_an_outcome_survives_storage(kind: str) -> None:
    outcome = evaluate(CANDIDATE, FITS, H200, Replay(kind=kind))  # type: ignore[arg-type]
    assert isinstance(outcome, Evaluated)
    assert decode(*CANDIDATE, encode(outcome)) == outcome


def test_a_rejection_survives_storage() -> None:
    for resources in (FITS, None):
        one = Fallen(gate=Gate.TIME, rejected=Rejected(reason=Reason.LAUNCH, detail="no"), resources=resources)
        assert decode(*CANDIDATE, encode(one)) == one
