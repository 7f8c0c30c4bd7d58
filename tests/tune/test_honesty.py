"""Regret curves on a recorded table."""

from __future__ import annotations

import math

import pytest

from flashgen.tune.honesty import random_curve, regret_curve
from flashgen.tune.stages import Candidate
from tests.tune.replay import config, plain_us, small_space, spec_of

TABLE = {each: plain_us(Candidate(spec_of(), each)) for each in small_space().configs}
SEEDS = range(8)


def test_regret_falls_to_nothing_when_the_table_is_used_up() -> None:
    for curve in (
        regret_curve(TABLE, spec_of(), [1, 10, len(TABLE)], SEEDS),
        random_curve(TABLE, [1, 10, len(TABLE)], SEEDS),
    ):
        medians = [point.median for point in curve]
        assert medians == sorted(medians, reverse=True)
        assert medians[0] > 0
        assert (curve[-1].median, curve[-1].worst) == (0.0, 0.0)


def test_the_sampler_beats_chance_on_a_smooth_table() -> None:
    trials = [len(TABLE) // 3]
    (sampled,), (drawn,) = regret_curve(TABLE, spec_of(), trials, SEEDS), random_curve(TABLE, trials, SEEDS)
    assert sampled.median < drawn.median


def test_a_good_first_guess_counts_from_the_first_trial() -> None:
    (point,) = regret_curve(TABLE, spec_of(), [1], SEEDS, first=[config()])
    assert point.worst == 0.0


def test_rejected_configs_cost_a_trial_and_find_nothing() -> None:
    table = {each: None if each.num_stages > 1 else us for each, us in TABLE.items()}
    bad = next(each for each, us in table.items() if us is None)
    (point,) = regret_curve(table, spec_of(), [1], [0], first=[bad])
    assert point.median == math.inf
    (point,) = regret_curve(table, spec_of(), [len(table)], [0])
    assert point.median == 0.0


def test_a_table_without_a_time_is_refused() -> None:
    with pytest.raises(ValueError, match="all 2 configs"):
        regret_curve(dict.fromkeys(list(TABLE)[:2]), spec_of(), [1], [0])
