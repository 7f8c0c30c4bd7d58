"""Measured rules timed again: which changes count, and what is not timed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flashgen.bench.retime import Pace, clocked_on, retime
from flashgen.outcome import Measurement, Reason, Rejected
from flashgen.spec import AttentionSpec, Workload
from flashgen.store.entry import TunedEntry
from tests.tuned import entry_of

SPEC = AttentionSpec(dtype="bf16", head_dim=64, head_dim_v=64, causal=True)
RULE = entry_of(SPEC)  # recorded at 100 us


def measured(us: float) -> Measurement:
    return Measurement(median_us=us, low_us=us, high_us=us, samples=24)


@pytest.mark.parametrize(
    ("us", "margin", "pace"),
    [
        (100.0, 0.05, Pace.AS_RECORDED),
        (104.9, 0.05, Pace.AS_RECORDED),
        (105.1, 0.05, Pace.SLOWER),
        (95.1, 0.05, Pace.AS_RECORDED),
        (94.9, 0.05, Pace.FASTER),
        (105.1, 0.1, Pace.AS_RECORDED),
        (100.1, 0.0, Pace.SLOWER),
    ],
)
def test_a_change_counts_beyond_the_margin(us: float, margin: float, pace: Pace) -> None:
    (found,) = retime([RULE], lambda entry, workload: measured(us), margin)
    assert (found.pace, found.holds) == (pace, pace is not Pace.SLOWER)
    assert found.ratio == pytest.approx(us / 100)


def test_a_rule_that_does_not_run_any_more_does_not_hold() -> None:
    (found,) = retime([RULE], lambda entry, workload: Rejected(reason=Reason.LAUNCH, detail="out of resource"), 0.05)
    assert (found.pace, found.holds, found.ratio) == (Pace.FAILED, False, None)


def test_every_workload_of_measured_rules_is_timed_and_no_predicted_one() -> None:
    (timing,) = RULE.evidence.timings
    longer = replace(timing, workload=replace(timing.workload, seqlen_k=4096))
    two = replace(RULE, evidence=replace(RULE.evidence, timings=(timing, longer)))
    asked: list[tuple[TunedEntry, Workload]] = []

    def time(entry: TunedEntry, workload: Workload) -> Measurement:
        asked.append((entry, workload))
        return measured(100.0)

    assert len(list(retime([two, entry_of(SPEC, measured=False)], time, 0.05))) == 2
    assert asked == [(two, timing.workload), (two, longer.workload)]


@pytest.mark.gpu
def test_a_rule_is_timed_on_the_gpu() -> None:
    from flashgen.hardware.resolve import resolve

    here = resolve("auto", require_gpu=True)
    (found,) = retime([RULE], clocked_on(here.target, here.index or 0), 0.05)
    assert found.ratio is not None, found.now
    assert found.ratio > 0
