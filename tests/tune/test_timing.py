"""Statistics of samples, and how many are taken, on a clock that is made up."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence

import pytest

from flashgen.outcome import Measurement, Reason, Rejected
from flashgen.tune.timing import Call, all_measured, finals, glance, median_ranks, summarise, warm_up


class FakeClock:
    """Runs a call to learn its microseconds; keeps the rounds it was asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []

    def sample(self, calls: Sequence[Call], rounds: int) -> list[list[float]]:
        self.asked.append((len(calls), rounds))
        columns: list[list[float]] = [[] for _ in calls]
        for _ in range(rounds):
            for column, call in zip(columns, calls):
                us = call()
                assert isinstance(us, float)
                column.append(us)
        return columns


def takes(us: float, noise: float = 0.0, seed: int = 0) -> Call:
    generator = random.Random(seed)
    return lambda: us + us * noise * generator.gauss(0.0, 1.0)


@pytest.mark.parametrize("samples", [6, 9, 15, 40, 101, 480])
def test_the_interval_of_the_median_covers_95_percent_and_no_narrower_one_does(samples: int) -> None:
    low, high = median_ranks(samples)

    def coverage(rank: int) -> float:
        return 1 - 2 * sum(math.comb(samples, i) / float(2**samples) for i in range(rank + 1))

    assert low + high == samples - 1
    assert coverage(low) >= 0.95
    assert coverage(low + 1) < 0.95 or low + 1 > (samples - 1) // 2


def test_the_interval_holds_the_true_median_about_as_often_as_it_says() -> None:
    generator, held = random.Random(7), 0
    for _ in range(400):
        found = summarise([math.exp(generator.gauss(0, 1)) for _ in range(31)])
        assert isinstance(found, Measurement)
        held += found.low_us <= 1.0 <= found.high_us
    assert 0.93 <= held / 400 <= 0.99


@pytest.mark.parametrize("samples", [1, 2, 5])
def test_few_samples_give_their_whole_range(samples: int) -> None:
    assert median_ranks(samples) == (0, samples - 1)


@pytest.mark.case("tuner-14")
@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_one_sample_that_is_no_time_spoils_a_measurement(bad: float) -> None:
    found = summarise([100.0, 101.0, bad, 102.0])
    assert isinstance(found, Rejected)
    assert found.reason == Reason.TIMING
    assert "1 of 4" in found.detail


def test_no_samples_are_no_measurement() -> None:
    assert isinstance(summarise([]), Rejected)


def test_a_candidate_that_is_clearly_slower_gets_three_samples_and_a_good_one_twelve() -> None:
    slow, good = FakeClock(), FakeClock()
    slow_found, good_found = glance(slow, [takes(200)], 100.0), glance(good, [takes(110)], 100.0)
    assert isinstance(slow_found, tuple)
    assert isinstance(good_found, tuple)
    assert (slow_found[0].samples, good_found[0].samples) == (3, 12)


def test_the_first_candidate_of_a_search_is_not_cut_short() -> None:
    found = glance(FakeClock(), [takes(200), takes(400)], math.inf)
    assert isinstance(found, tuple)
    assert [each.samples for each in found] == [12, 12]


def test_finalists_are_sampled_together_until_their_medians_are_sharp() -> None:
    quiet, noisy = FakeClock(), FakeClock()
    finals(quiet, [takes(100), takes(101)])
    finals(noisy, [takes(100, 0.05, seed=1), takes(101, 0.05, seed=2)])
    assert {calls for calls, _ in quiet.asked + noisy.asked} == {2}
    rounds = [sum(rounds for _, rounds in clock.asked) for clock in (quiet, noisy)]
    assert rounds[0] < rounds[1] <= 480


def test_a_rival_without_a_time_neither_stops_the_finals_nor_wins() -> None:
    found = finals(FakeClock(), [takes(100), takes(math.nan)])
    assert isinstance(found[0], Measurement)
    assert isinstance(found[1], Rejected)
    assert isinstance(all_measured(found), Rejected)


def test_finals_of_nobody_end() -> None:
    assert finals(FakeClock(), []) == []


def test_warming_up_ends_when_two_rounds_agree() -> None:
    rising: Iterator[float] = iter([200.0] * 10 + [150.0] * 10 + [120.0] * 10 + [119.5] * 10 + [119.5] * 100)
    clock = FakeClock()
    assert warm_up(clock, lambda: next(rising))
    assert len(clock.asked) == 4


def test_warming_up_gives_up_on_a_clock_that_never_settles() -> None:
    generator = random.Random(0)
    assert not warm_up(FakeClock(), lambda: math.exp(3 * generator.gauss(0, 1)))
