"""From candidates to a winner that is proven."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from flashgen.config import KernelConfig
from flashgen.families import GluonSm90BackwardConfig, TlBackwardConfig
from flashgen.outcome import Proof, Reason, Rejected
from flashgen.resources.fit import HELD_OUT
from flashgen.tune.choose import Incumbents
from flashgen.tune.evaluate import Evaluated, Gate, evaluate
from flashgen.tune.settle import Settled, settle
from flashgen.tune.stages import Candidate
from tests.tune.replay import H200, WORKLOAD, Replay, config, plain_proof, plain_resources, rejected, spec_of

SLOW, FAST, FASTEST = config(64, 64, 4), config(128, 64, 8), config(128, 128, 8)
US: dict[KernelConfig, float] = {SLOW: 104.0, FAST: 101.0, FASTEST: 99.0}


def table(kind: str = "measured", **stages: object) -> Replay:
    return Replay(kind=kind, **{"us": lambda c: US[c.config], **stages})  # type: ignore[arg-type]


def evaluated(stages: Replay, *configs: KernelConfig) -> list[Evaluated]:
    candidates = [Candidate(spec_of(), each) for each in configs or US]
    outcomes = [evaluate(each, plain_resources(each), H200, stages) for each in candidates]
    assert all(isinstance(outcome, Evaluated) for outcome in outcomes)
    return [outcome for outcome in outcomes if isinstance(outcome, Evaluated)]


def only(found: Settled) -> KernelConfig:
    """The config of the one rule."""
    ((rule, _),) = found.rules
    return rule.winner.compiled.config


def unless(*bad: KernelConfig) -> Callable[[Candidate], Proof | Rejected]:
    return lambda c: rejected(Reason.INEXACT, "strays") if c.config in bad else plain_proof(c)


def test_the_winner_is_proven_thoroughly_and_comes_first() -> None:
    stages = table()
    found = settle(evaluated(stages), stages, [WORKLOAD])
    assert only(found) == FASTEST
    assert (found.winners, [each.config for each in found.others]) == ((FASTEST,), [FAST, SLOW])
    assert stages.proven[-1] == (Candidate(spec_of(), FASTEST), True)
    assert [thorough for _, thorough in stages.proven].count(True) == 1
    assert found.fell == ()


def test_a_winner_that_the_thorough_proof_rejects_gives_way_to_the_next() -> None:
    stages = table()
    candidates = evaluated(stages)
    stages.proof = unless(FASTEST)
    found = settle(candidates, stages, [WORKLOAD])
    assert only(found) == FAST
    assert [(each, fallen.gate) for each, fallen in found.fell] == [(FASTEST, Gate.PROVE)]


@pytest.mark.case("tuner-10")
def test_what_came_out_of_a_file_is_proven_again_before_it_is_timed() -> None:
    restored = evaluated(table())
    stages = table(proof=unless(FASTEST, FAST))
    found = settle(restored, stages, [WORKLOAD])
    assert only(found) == SLOW
    assert [each.config for each in stages.timed] == [SLOW]


def test_predictions_are_proven_in_order_until_one_holds() -> None:
    stages = table("predicted", proof=unless(FASTEST))
    found = settle(evaluated(stages), stages, [WORKLOAD])
    assert only(found) == FAST
    assert [candidate.config for candidate, _ in stages.proven] == [FASTEST, FAST]


def test_a_finalist_whose_final_time_is_no_time_falls() -> None:
    stages = table()
    candidates = evaluated(stages)
    stages.us = lambda c: math.nan if c.config == FASTEST else US[c.config]
    found = settle(candidates, stages, [WORKLOAD])
    assert only(found) == FAST
    assert [fallen.rejected.reason for _, fallen in found.fell] == [Reason.TIMING]


def test_only_what_may_still_win_is_timed_again() -> None:
    stages = table(us=lambda c: 1.0 + c.config.heads_per_group)
    candidates = evaluated(stages, *(config(heads_per_group=n) for n in range(1, 40)))
    stages.timed = []
    settle(candidates, stages, [WORKLOAD])
    assert len(stages.timed) == 1  # the next is 50% slower
    stages = table(us=lambda c: 100.0 + 0.01 * c.config.heads_per_group)
    candidates = evaluated(stages, *(config(heads_per_group=n) for n in range(1, 40)))
    stages.timed = []
    settle(candidates, stages, [WORKLOAD])
    assert len(stages.timed) == 8


def test_when_all_finalists_fall_the_others_get_their_turn() -> None:
    us: dict[KernelConfig, float] = {config(heads_per_group=n): float(10 * n) for n in (1, 2, 3)}
    stages = table(us=lambda c: us[c.config])
    candidates = evaluated(stages, *us)
    stages.proof = unless(*list(us)[:2])
    found = settle(candidates, stages, [WORKLOAD])
    assert only(found) == list(us)[2]


def test_a_kernel_that_no_config_makes_exact_is_given_up_after_a_few_proofs() -> None:
    stages = table("predicted", us=lambda c: 100.0, proof=lambda c: rejected(Reason.INEXACT))
    found = settle(evaluated(stages, *(config(heads_per_group=n) for n in range(1, 40))), stages, [WORKLOAD])
    assert found.rules == ()
    assert len(stages.proven) == 8


def test_nobody_left_is_no_choice() -> None:
    assert settle([], Replay(), [WORKLOAD]).rules == ()


SHORT, LONG = (replace(WORKLOAD, seqlen_q=n, seqlen_k=n) for n in (512, 8192))


def test_a_rule_that_the_thorough_proof_rejects_gives_its_length_to_the_next() -> None:
    us: dict[KernelConfig, list[float]] = {SLOW: [150.0, 100.0], FAST: [110.0, 120.0], FASTEST: [100.0, 120.0]}
    stages = table(us=lambda c: us[c.config])
    candidates = evaluated(stages)
    stages.proof, stages.proven = unless(FASTEST), []
    found = settle(candidates, stages, [SHORT, LONG])
    assert [rule.winner.compiled.config for rule, _ in found.rules] == [FAST, SLOW]
    assert [str(rule.keys) for rule, _ in found.rules] == ["seqlen_k 1..2048", "seqlen_k 2049.."]
    assert found.winners == (SLOW, FAST)  # for the longest first
    thorough = [candidate.config for candidate, thorough in stages.proven if thorough]
    assert sorted(each.key for each in thorough) == sorted(each.key for each in (FASTEST, SLOW, FAST))


def test_the_best_of_every_length_is_a_finalist() -> None:
    """Of 39 configs that are nearly as good as each other over both, the best for short sequences is bad for long."""
    special = config(heads_per_group=39)

    def us(candidate: Candidate) -> list[float]:
        slowly = 100.0 + 0.01 * candidate.config.heads_per_group
        return [50.0, 400.0] if candidate.config == special else [slowly, slowly]

    stages = table(us=us)
    candidates = evaluated(stages, *(config(heads_per_group=n) for n in range(1, 40)))
    stages.timed = []
    found = settle(candidates, stages, [SHORT, LONG])
    assert [rule.winner.compiled.config for rule, _ in found.rules] == [special, config(heads_per_group=1)]
    assert len(stages.timed) == 9


def test_the_safe_config_is_timed_with_the_finalists_and_binds() -> None:
    safe = config(heads_per_group=39)

    def us(candidate: Candidate) -> list[float]:
        return [100.0, 105.0] if candidate.config == safe else [101.5, 100.0 + 0.01 * candidate.config.heads_per_group]

    stages = table(us=us)
    candidates = evaluated(stages, *(config(heads_per_group=n) for n in range(1, 40)))
    stages.timed = []
    found = settle(candidates, stages, [SHORT, LONG], Incumbents(safe=safe))
    assert stages.timed[0].config == safe
    assert [rule.winner.compiled.config for rule, _ in found.rules] == [safe, config(heads_per_group=1)]
    assert len(settle(candidates, stages, [SHORT, LONG]).rules) == 1


def test_no_rule_is_made_for_a_difference_that_was_only_predicted_and_is_within_the_models_error() -> None:
    error = HELD_OUT.error
    small = {SLOW: [100.0, 100.0 * (1 + 0.9 * error)], FAST: [150.0, 100.0], FASTEST: [150.0, 100.0]}
    large = {SLOW: [100.0, 100.0 * (1 + 1.1 * error)], FAST: [150.0, 100.0], FASTEST: [150.0, 100.0]}
    for us, count in ((small, 1), (large, 2)):
        stages = table("predicted", us=lambda c, us=us: us[c.config])
        assert len(settle(evaluated(stages), stages, [SHORT, LONG]).rules) == count


def test_what_crashes_in_the_finals_falls_like_any_other() -> None:
    stages = table()
    candidates = evaluated(stages)
    stages.us = lambda c: rejected(Reason.CRASHED, "misaligned address") if c.config == FASTEST else US[c.config]
    found = settle(candidates, stages, [WORKLOAD])
    assert found.winners == (FAST,)
    assert [fallen.rejected.reason for _, fallen in found.fell] == [Reason.CRASHED]


def test_beside_an_unordered_winner_the_best_of_the_others_has_a_rule_for_who_asks_for_determinism() -> None:
    spec = replace(spec_of(), op="backward")
    hopper = GluonSm90BackwardConfig(BLOCK_M=64, BLOCK_N=128, num_stages=2)
    slow, fast = (TlBackwardConfig.of_passes((64, kept, 4, 2), (kept, 64, 4, 2)) for kept in (64, 128))
    us = {hopper: 50.0, slow: 90.0, fast: 70.0}
    stages = Replay(kind="measured", us=lambda candidate: us[candidate.config])

    def settled(*configs: KernelConfig) -> Settled:
        candidates = [Candidate(spec, each) for each in configs]
        outcomes = [evaluate(each, plain_resources(each), H200, stages) for each in candidates]
        return settle([one for one in outcomes if isinstance(one, Evaluated)], stages, [WORKLOAD])

    found = settled(slow, hopper, fast)
    assert [rule.winner.compiled.config for rule, _ in found.rules] == [hopper, fast]
    assert [each.config for each in found.others] == [slow]
    assert only(settled(hopper)) == hopper
    us[hopper] = 80.0
    assert only(settled(slow, hopper, fast)) == fast  # which is deterministic itself
