"""The tie rule."""

from __future__ import annotations

import random

from flashgen.outcome import Measurement, Prediction, Resources
from flashgen.tune.choose import Timed, choose
from flashgen.tune.stages import Candidate, Compiled, Times
from tests.tune.replay import config, spec_of


def timed(name: int, *medians: float, shared: int = 1000, warps: int = 8, spread: float = 0.001) -> Timed:
    times: Times = tuple(
        Measurement(median_us=us, low_us=us * (1 - spread), high_us=us * (1 + spread), samples=50) for us in medians
    )
    resources = Resources(shared_bytes=shared, registers=128, spill_bytes=0, num_warps=warps)
    candidate = Candidate(spec_of(), config(heads_per_group=name, warps=warps))
    return Timed(compiled=Compiled(candidate=candidate, resources=resources), times=times)


def test_the_clearly_fastest_wins_whatever_it_needs() -> None:
    fast = timed(1, 100.0, shared=200_000)
    found = choose([timed(2, 110.0), fast, timed(3, 120.0)])
    assert found.winner is fast
    assert not found.tied


def test_among_equals_least_shared_memory_decides_then_warps_then_the_key() -> None:
    best, lean = timed(9, 100.0, shared=3000), timed(8, 100.1, shared=2000)
    assert choose([best, lean]).winner is lean
    few = timed(7, 100.1, shared=2000, warps=4)
    assert choose([best, lean, few]).winner is few
    first = timed(3, 100.15, shared=2000, warps=4)
    found = choose([best, lean, few, first])
    assert found.winner is first
    assert set(found.tied) == {best, lean, few}


def test_among_equals_the_one_that_a_file_holds_stays_and_a_slower_one_does_not() -> None:
    best, lean, slow = timed(1, 100.0, shared=3000), timed(2, 100.1, shared=10), timed(3, 103.0, shared=10)
    found = choose([best, lean, slow], held={best.compiled.config})
    assert (found.winner, found.tied) == (best, (lean,))
    assert choose([best, lean, slow], held={slow.compiled.config}).winner is lean


def test_wide_intervals_that_touch_are_a_tie_and_narrow_ones_are_not() -> None:
    best, lean = timed(1, 100.0, shared=3000, spread=0.02), timed(2, 103.0, shared=10, spread=0.02)
    assert choose([best, lean]).winner is lean
    best, lean = timed(1, 100.0, shared=3000), timed(2, 103.0, shared=10)
    assert choose([best, lean]).winner is best


def test_the_choice_does_not_depend_on_the_order_of_the_finalists() -> None:
    finalists = [timed(n, 100.0 + n * 0.05, shared=1000 * (n % 3)) for n in range(1, 8)]
    winners = set()
    for seed in range(20):
        random.Random(seed).shuffle(finalists)
        winners.add(choose(finalists).winner.compiled.config.key)
    assert len(winners) == 1


def test_two_runs_with_a_little_noise_choose_the_same_config() -> None:
    winners = set()
    for seed in range(30):
        noise = random.Random(seed)
        finalists = [timed(n, 100.0 * (1 + noise.gauss(0, 0.0005)), shared=1000 * n) for n in (1, 2, 3)]
        winners.add(choose([*finalists, timed(4, 104.0, shared=1)]).winner.compiled.config.key)
    assert len(winners) == 1


def test_several_workloads_are_weighed_by_their_ratios() -> None:
    # By the sum of times the first would win: its 1000 us outweigh all. By ratios the second is 2x better at one.
    first, second = timed(1, 20.0, 1000.0), timed(2, 10.0, 1100.0)
    assert choose([first, second]).winner is second


def test_predictions_tie_when_they_are_equal() -> None:
    def predicted(name: int, us: float, shared: int) -> Timed:
        measured = timed(name, us, shared=shared)
        return Timed(compiled=measured.compiled, times=(Prediction(us=us, bound="mma"),))

    found = choose([predicted(1, 100.0, 500), predicted(2, 100.0, 400), predicted(3, 101.0, 1)])
    assert found.winner.compiled.resources.shared_bytes == 400
    assert len(found.tied) == 1
