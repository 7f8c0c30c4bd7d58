"""Few rules for many lengths: small tables by hand, and random ones against every way to cut them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashgen.outcome import Prediction, Resources
from flashgen.spec import Workload
from flashgen.store.entry import WorkloadRange
from flashgen.tune.choose import RESOLUTION, Incumbents, Timed, choose
from flashgen.tune.rules import MARGIN, Rule, fit_rules
from flashgen.tune.stages import Candidate, Compiled
from tests.tune.replay import config, spec_of
from tests.tune.test_choose import timed

LENGTHS = (512, 1024, 4096, 16384)


def on(*lengths: int, heads_kv: int = 8) -> list[Workload]:
    return [Workload(batch=1, heads_q=8, heads_kv=heads_kv, seqlen_q=n, seqlen_k=n) for n in lengths]


def exact(name: int, *us: float, shared: int = 1000) -> Timed:
    """A finalist whose times are without doubt."""
    compiled = Compiled(
        candidate=Candidate(spec_of(), config(heads_per_group=name)),
        resources=Resources(shared_bytes=shared, registers=128, spill_bytes=0, num_warps=8),
    )
    return Timed(compiled=compiled, times=tuple(Prediction(us=each, bound="mma") for each in us))


def names(rules: Sequence[Rule]) -> list[int]:
    return [rule.winner.compiled.config.heads_per_group for rule in rules]


def ranges(rules: Sequence[Rule]) -> list[str]:
    return [str(rule.keys).removeprefix("seqlen_k ") for rule in rules]


def test_one_rule_is_enough_where_one_config_is_near_the_best_everywhere() -> None:
    (rule,) = fit_rules([exact(1, 100, 100, 101, 100), exact(2, 101, 101, 100, 101.5)], on(*LENGTHS))
    assert names([rule]) == [1]
    assert rule.keys == WorkloadRange()
    assert rule.regrets == pytest.approx((0, 0, 0.01, 0))
    assert (rule.worst_regret, rule.mean_regret) == (pytest.approx(0.01), pytest.approx(0.0025))
    assert rule.workloads == tuple(on(*LENGTHS))


def test_two_rules_part_at_the_geometric_mean_of_the_lengths_between_them() -> None:
    finalists = [exact(1, 100, 100, 110, 120), exact(2, 130, 110, 100, 100)]
    rules = fit_rules(finalists, on(*LENGTHS))
    assert names(rules) == [1, 2]
    assert ranges(rules) == ["1..2048", "2049.."]
    assert [rule.worst_regret for rule in rules] == [0, 0]
    assert [len(rule.winner.times) for rule in rules] == [2, 2]
    shifted = fit_rules([exact(1, 100, 120), exact(2, 120, 100)], on(1000, 1001))
    assert ranges(shifted) == ["1..1000", "1001.."]


def test_a_third_rule_that_gains_less_than_the_margin_is_not_made() -> None:
    gain = 1 + 0.9 * MARGIN
    finalists = [exact(1, 100, 130, 130, 130), exact(2, 120, 100, 100, 100 * gain), exact(3, 130, 120, 110, 100)]
    rules = fit_rules(finalists, on(*LENGTHS))
    assert names(rules) == [1, 2]
    assert rules[1].worst_regret == pytest.approx(0.9 * MARGIN)
    gain = 1 + 1.1 * MARGIN
    finalists[1] = exact(2, 120, 100, 100, 100 * gain)
    assert names(fit_rules(finalists, on(*LENGTHS))) == [1, 2, 3]


def test_of_equally_many_rules_those_with_less_regret_are_taken() -> None:
    # Either could serve the second length: the first gives away 1.5% there, the second nothing.
    assert ranges(fit_rules([exact(1, 100, 101.5, 120), exact(2, 120, 100, 100)], on(512, 1024, 4096))) == [
        "1..724",
        "725..",
    ]


def test_where_the_regrets_cannot_be_told_apart_the_rule_for_longer_sequences_reaches_down() -> None:
    for at_1024 in (99.8, 100, 100.2):
        rules = fit_rules([exact(1, 100, at_1024, 120), exact(2, 120, 100, 100)], on(512, 1024, 4096))
        assert ranges(rules) == ["1..724", "725.."]


def test_within_a_range_the_tie_rule_decides() -> None:
    finalists = [exact(1, 100, 100, shared=3000), exact(2, 100.1, 100.1, shared=2000), exact(3, 101, 101, shared=1)]
    (rule,) = fit_rules(finalists, on(512, 4096))
    assert names([rule]) == [2]
    assert len(rule.choice.tied) == 1
    assert rule.worst_regret == pytest.approx(0.001)


def test_workloads_of_one_length_stay_together_even_where_they_disagree() -> None:
    workloads = [*on(1024, 4096), *on(1024, heads_kv=2)]
    finalists = [exact(1, 100, 100, 110), exact(2, 112, 130, 100), exact(3, 104, 120, 104)]
    short, long = fit_rules(finalists, workloads)
    assert names([short, long]) == [3, 1]  # least of the worst: 4%, against 10% and 12%
    assert short.workloads == (workloads[0], workloads[2])
    assert short.worst_regret == pytest.approx(0.04)


def test_no_rule_is_slower_than_the_safe_config() -> None:
    finalists = [exact(1, 101.5, 100), exact(2, 100, 110)]
    safe = finalists[1].compiled.config
    assert names(fit_rules(finalists, on(512, 4096))) == [1]
    assert names(fit_rules(finalists, on(512, 4096), Incumbents(safe=safe))) == [2, 1]
    assert names(fit_rules(finalists[:1], on(512, 4096), Incumbents(safe=safe))) == [1]  # which nobody timed


def test_the_safe_config_binds_on_each_workload_of_a_length() -> None:
    workloads = [*on(1024), *on(1024, heads_kv=2)]
    finalists = [exact(1, 100, 106), exact(2, 104, 104)]  # the first has the better geometric mean
    (rule,) = fit_rules(finalists, workloads, Incumbents(safe=finalists[1].compiled.config))
    assert names([rule]) == [2]
    assert rule.worst_regret == pytest.approx(0.04)


def test_a_config_is_only_ruled_out_by_times_that_can_show_it() -> None:
    slow = 100 * (1 + MARGIN + 0.01)
    sure = [timed(1, 100.0, 100.0, spread=0.001), timed(2, slow, 100.0, shared=10, spread=0.001)]
    unsure = [timed(1, 100.0, 100.0, spread=0.03), timed(2, slow, 100.0, shared=10, spread=0.03)]
    assert names(fit_rules(sure, on(512, 4096))) == [1]
    assert names(fit_rules(unsure, on(512, 4096))) == [2]


def test_of_equals_the_rules_that_a_file_holds_stay_each_where_it_is_one() -> None:
    finalists = [exact(1, 100, 100.2, 140), exact(2, 100.2, 100, 140), exact(3, 140, 140, 100), exact(4, 140, 140, 100)]
    held = frozenset(finalists[number].compiled.config for number in (1, 3))
    assert names(fit_rules(finalists, on(512, 4096, 16384))) == [1, 3]
    assert names(fit_rules(finalists, on(512, 4096, 16384), Incumbents(held=held))) == [2, 4]


def test_times_that_may_be_wrong_take_a_range_from_the_safe_config_only_by_more_than_that() -> None:
    safe, lean, fast = exact(1, 109, 109, shared=9), exact(2, 100, 100.2, shared=1), exact(3, 100, 100, shared=5)
    users = Incumbents(safe=safe.compiled.config)
    assert names(fit_rules([safe, lean, fast], on(512, 4096), users)) == [2]
    (rule,) = fit_rules([safe, lean, fast], on(512, 4096), users, error=0.1)
    assert names([rule]) == [1]
    assert {one.compiled for one in rule.choice.tied} == {lean.compiled, fast.compiled}
    assert rule.worst_regret == pytest.approx(0.09)
    assert names(fit_rules([safe, lean, fast], on(512, 4096), users, error=0.08)) == [2]
    assert names(fit_rules([lean, fast], on(512, 4096), users, error=0.1)) == [2]  # the safe one is not there


def test_times_that_may_be_wrong_tell_no_lengths_apart_that_they_could_be_wrong_about() -> None:
    finalists = [exact(1, 100, 109), exact(2, 150, 100)]
    assert names(fit_rules(finalists, on(512, 4096), error=0.1)) == [1]
    assert names(fit_rules(finalists, on(512, 4096), error=0.08)) == [1, 2]


def test_rules_cover_every_length_once() -> None:
    finalists = [exact(n, *(100 if n == position else 200 for position in range(len(LENGTHS)))) for n in (1, 2, 3)]
    finalists.append(exact(9, 100, 200, 200, 200))
    rules = fit_rules(finalists, on(*LENGTHS)[::-1])  # the order of the workloads says nothing
    assert (rules[0].keys.seqlen_k_min, rules[-1].keys.seqlen_k_max) == (1, None)
    for one, following in pairwise(rules):
        assert one.keys.seqlen_k_max is not None
        assert following.keys.seqlen_k_min == one.keys.seqlen_k_max + 1
    for rule in rules:
        assert all(rule.keys.covers(workload) for workload in rule.workloads)


# -- against every way to cut --

_US = st.sampled_from([100.0, 100.3, 101.0, 101.9, 102.4, 103.0, 107.0, 120.0])
_SEQLENS = st.lists(st.sampled_from([128, 512, 1024, 3000, 16384]), min_size=1, max_size=6)


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[Timed], list[Workload], int]:
    """Finalists, workloads (some of one length), and which of the finalists is the safe one (-1: none)."""
    workloads = [
        Workload(batch=batch, heads_q=8, heads_kv=8, seqlen_q=n, seqlen_k=n)
        for batch, n in enumerate(sorted(draw(_SEQLENS)), start=1)
    ]
    rows = draw(st.lists(st.tuples(*(_US for _ in workloads)), min_size=1, max_size=5))
    finalists = [exact(name, *row, shared=draw(st.sampled_from([1, 2]))) for name, row in enumerate(rows, start=1)]
    return finalists, workloads, draw(st.integers(-1, len(finalists) - 1))


def cuts(lengths: list[int]) -> Iterator[list[list[int]]]:
    """Every way to cut the lengths into ranges."""
    for count in range(len(lengths)):
        for inner in combinations(range(1, len(lengths)), count):
            ends = [0, *inner, len(lengths)]
            yield [lengths[start:end] for start, end in pairwise(ends)]


@given(tables())
def test_no_way_to_cut_needs_fewer_rules_or_as_many_that_give_away_less(
    table: tuple[list[Timed], list[Workload], int],
) -> None:
    finalists, workloads, safe = table
    us = [[time.us for time in one.times] for one in finalists]  # type: ignore[union-attr]
    best = [min(column) for column in zip(*us)]
    regret = [[each / least - 1 for each, least in zip(row, best)] for row in us]
    lengths = sorted({workload.seqlen_k for workload in workloads})
    places = {n: [p for p, workload in enumerate(workloads) if workload.seqlen_k == n] for n in lengths}

    def is_sound(row: int, n: int) -> bool:
        return safe < 0 or all(us[row][p] <= us[safe][p] * (1 + RESOLUTION) for p in places[n])

    def limit(n: int) -> float:
        sound = (row for row in range(len(us)) if is_sound(row, n))
        return max(MARGIN, RESOLUTION + min(max(regret[row][p] for p in places[n]) for row in sound))

    def may(row: int, n: int) -> bool:
        return is_sound(row, n) and all(regret[row][p] <= limit(n) for p in places[n])

    def excess(part: list[int]) -> float:
        """Of the config that the tie rule takes for a range; infinite where none may have it."""
        own = [p for n in part for p in places[n]]
        allowed = [finalists[row].on(own) for row in range(len(us)) if all(may(row, n) for n in part)]
        if not allowed:
            return math.inf
        row = choose(allowed).winner.compiled.config.heads_per_group - 1
        return sum(max(0.0, regret[row][p] - RESOLUTION) for p in own)

    totals = [(len(cut), sum(map(excess, cut))) for cut in cuts(lengths)]
    least, total = min(each for each in totals if each[1] < math.inf)
    rules = fit_rules(finalists, workloads, Incumbents(safe=None if safe < 0 else finalists[safe].compiled.config))
    assert (len(rules), sum(rule.excess for rule in rules)) == (least, pytest.approx(total))
    for rule in rules:
        row = names([rule])[0] - 1
        own = [workloads.index(workload) for workload in rule.workloads]
        assert all(may(row, workload.seqlen_k) for workload in rule.workloads)
        assert rule.regrets == pytest.approx(tuple(regret[row][p] for p in own))
        assert rule.worst_regret == max(rule.regrets)
        assert 0 <= rule.mean_regret <= rule.worst_regret
        assert math.isclose(rule.mean_regret, sum(rule.regrets) / len(own), abs_tol=1e-12)
    assert sorted(w for rule in rules for w in rule.workloads) == sorted(workloads)
