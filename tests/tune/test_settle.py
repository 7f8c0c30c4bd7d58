"""From candidates to a winner that is proven."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from flashgen.config import KernelConfig
from flashgen.errors import FlashgenError
from flashgen.outcome import Proof, Reason, Rejected
from flashgen.tune.evaluate import Evaluated, Gate, evaluate
from flashgen.tune.settle import settle
from flashgen.tune.stages import Candidate
from tests.tune.replay import H200, Replay, config, plain_proof, plain_resources, rejected, spec_of

SLOW, FAST, FASTEST = config(64, 64, 4), config(128, 64, 8), config(128, 128, 8)
US: dict[KernelConfig, float] = {SLOW: 104.0, FAST: 101.0, FASTEST: 99.0}


def table(kind: str = "measured", **stages: object) -> Replay:
    return Replay(kind=kind, **{"us": lambda c: US[c.config], **stages})  # type: ignore[arg-type]


def evaluated(stages: Replay, *configs: KernelConfig) -> list[Evaluated]:
    candidates = [Candidate(spec_of(), each) for each in configs or US]
    outcomes = [evaluate(each, plain_resources(each), H200, stages) for each in candidates]
    assert all(isinstance(outcome, Evaluated) for outcome in outcomes)
    return [outcome for outcome in outcomes if isinstance(outcome, Evaluated)]


def unless(*bad: KernelConfig) -> Callable[[Candidate], Proof | Rejected]:
    return lambda c: rejected(Reason.INEXACT, "strays") if c.config in bad else plain_proof(c)


def test_the_winner_is_proven_thoroughly_and_comes_first() -> None:
    stages = table()
    found = settle(evaluated(stages), stages)
    assert found.choice is not None
    assert found.choice.winner.compiled.config == FASTEST
    assert [each.config for each in found.ranked] == [FASTEST, FAST, SLOW]
    assert stages.proven[-1] == (Candidate(spec_of(), FASTEST), True)
    assert [thorough for _, thorough in stages.proven].count(True) == 1
    assert found.fell == ()


def test_a_winner_that_the_thorough_proof_rejects_gives_way_to_the_next() -> None:
    stages = table()
    candidates = evaluated(stages)
    stages.proof = unless(FASTEST)
    found = settle(candidates, stages)
    assert found.choice is not None
    assert found.choice.winner.compiled.config == FAST
    assert [(each, fallen.gate) for each, fallen in found.fell] == [(FASTEST, Gate.PROVE)]


@pytest.mark.case("tuner-10")
def test_what_came_out_of_a_file_is_proven_again_before_it_is_timed() -> None:
    stages = table()
    restored = [Evaluated(compiled=one.compiled, times=one.times) for one in evaluated(stages)]
    stages.proof, stages.timed = unless(FASTEST, FAST), []
    found = settle(restored, stages)
    assert found.choice is not None
    assert found.choice.winner.compiled.config == SLOW
    assert [each.config for each in stages.timed] == [SLOW]


def test_predictions_are_proven_in_order_until_one_holds() -> None:
    stages = table("predicted", proof=unless(FASTEST))
    found = settle(evaluated(stages), stages)
    assert found.choice is not None
    assert found.choice.winner.compiled.config == FAST
    assert [candidate.config for candidate, _ in stages.proven] == [FASTEST, FAST]


def test_a_finalist_whose_final_time_is_no_time_falls() -> None:
    stages = table()
    candidates = evaluated(stages)
    stages.us = lambda c: math.nan if c.config == FASTEST else US[c.config]
    found = settle(candidates, stages)
    assert found.choice is not None
    assert found.choice.winner.compiled.config == FAST
    assert [fallen.rejected.reason for _, fallen in found.fell] == [Reason.TIMING]


def test_only_what_may_still_win_is_timed_again() -> None:
    stages = table(us=lambda c: 1.0 + c.config.heads_per_group)
    candidates = evaluated(stages, *(config(heads_per_group=n) for n in range(1, 40)))
    stages.timed = []
    settle(candidates, stages)
    assert len(stages.timed) == 1  # the next is 50% slower
    stages = table(us=lambda c: 100.0 + 0.01 * c.config.heads_per_group)
    candidates = evaluated(stages, *(config(heads_per_group=n) for n in range(1, 40)))
    stages.timed = []
    settle(candidates, stages)
    assert len(stages.timed) == 8


def test_when_all_finalists_fall_the_others_get_their_turn() -> None:
    us: dict[KernelConfig, float] = {config(heads_per_group=n): float(10 * n) for n in (1, 2, 3)}
    stages = table(us=lambda c: us[c.config])
    candidates = evaluated(stages, *us)
    stages.proof = unless(*list(us)[:2])
    found = settle(candidates, stages)
    assert found.choice is not None
    assert found.choice.winner.compiled.config == list(us)[2]


def test_a_kernel_that_no_config_makes_exact_is_given_up_after_a_few_proofs() -> None:
    stages = table("predicted", us=lambda c: 100.0, proof=lambda c: rejected(Reason.INEXACT))
    found = settle(evaluated(stages, *(config(heads_per_group=n) for n in range(1, 40))), stages)
    assert (found.choice, found.proof) == (None, None)
    assert len(stages.proven) == 8


def test_nobody_left_is_no_choice() -> None:
    assert settle([], Replay()).choice is None


def test_a_crash_in_the_finals_ends_the_run() -> None:
    stages = table()
    candidates = evaluated(stages)
    stages.us = lambda c: rejected(Reason.CRASHED, "misaligned address")
    with pytest.raises(FlashgenError, match="misaligned address"):
        settle(candidates, stages)
