"""The data model refuses what cannot be true, and is sorted however it was put together."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashgen.errors import TunedConfigError
from flashgen.families import GluonSm90BackwardConfig
from flashgen.outcome import Measurement, Prediction
from flashgen.resources.fit import HELD_OUT
from flashgen.spec import AttentionSpec, Workload
from flashgen.store.entry import TunedEntry, TunedFile, WorkloadRange
from flashgen.store.evidence import Timing


def workload(seqlen_k: int) -> Workload:
    return Workload(batch=1, heads_q=1, heads_kv=1, seqlen_q=1, seqlen_k=seqlen_k)


def test_range_bounds_are_inclusive() -> None:
    middle = WorkloadRange(seqlen_k_min=3, seqlen_k_max=5)
    assert [n for n in range(1, 9) if middle.covers(workload(n))] == [3, 4, 5]
    assert WorkloadRange().covers(workload(1 << 30))


@pytest.mark.parametrize(("low", "high"), [(0, None), (5, 4), (-1, 3)])
def test_empty_ranges_are_refused(low: int, high: int | None) -> None:
    with pytest.raises(TunedConfigError, match=f"seqlen_k from {low} to {high} is no range"):
        WorkloadRange(seqlen_k_min=low, seqlen_k_max=high)


def ranges() -> st.SearchStrategy[WorkloadRange]:
    def build(low: int, length: int | None) -> WorkloadRange:
        return WorkloadRange(seqlen_k_min=low, seqlen_k_max=None if length is None else low + length)

    return st.builds(build, st.integers(1, 9), st.none() | st.integers(0, 9))


@given(ranges(), ranges())
def test_without_leaves_exactly_what_the_other_does_not_cover(one: WorkloadRange, other: WorkloadRange) -> None:
    left = one.without(other)
    for n in range(1, 30):
        covering = [piece for piece in left if piece.covers(workload(n))]
        assert len(covering) == (one.covers(workload(n)) and not other.covers(workload(n)))
    assert one.overlaps(other) == any(one.covers(workload(n)) and other.covers(workload(n)) for n in range(1, 30))


def test_a_measured_timing_is_rounded_and_has_its_tflops() -> None:
    spec = AttentionSpec(dtype="bf16", head_dim=64, head_dim_v=64)
    size = Workload(batch=1, heads_q=1, heads_kv=1, seqlen_q=1000, seqlen_k=1000)
    timing = Timing.measured(spec, size, Measurement(median_us=12.3456789, low_us=12.0, high_us=13.0, samples=9))
    assert (timing.median_us, timing.samples, timing.bound) == (12.346, 9, "")
    assert timing.tflops == 20.736  # 4 * 64 * 1e6 FLOPs in 12.3456789 us


def test_a_predicted_timing_is_one_number_without_samples() -> None:
    spec = AttentionSpec(dtype="bf16", head_dim=64, head_dim_v=64)
    timing = Timing.predicted(spec, workload(64), Prediction(us=2.0, bound="hbm"))
    assert (timing.low_us, timing.median_us, timing.high_us, timing.samples, timing.bound) == (2.0, 2.0, 2.0, 0, "hbm")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"median_us": math.nan}, "median_us nan is not a positive number"),
        ({"high_us": math.inf}, "high_us inf is not a positive number"),
        ({"low_us": 0.0}, "low_us 0.0 is not a positive number"),
        ({"low_us": 124.0}, "median_us 123.46 is outside 124.0 to 125.0"),
        ({"samples": 0}, "a timing without samples is a prediction"),
        ({"samples": -1}, "has samples"),
        ({"bound": "mma"}, "no bound"),
    ],
)
def test_impossible_timings_are_refused(
    make_entry: Callable[..., TunedEntry], changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(TunedConfigError, match=message):
        replace(make_entry().evidence.timings[0], **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "predicted"}, "the evidence is predicted, and not all of its timings are"),
        ({"kind": "guessed"}, "neither measured nor predicted"),
        ({"timings": ()}, "at least one workload"),
        ({"ties": 240}, "ties 240 is not from 0 to the 240 candidates less the winner"),
        ({"ties": -1}, "ties -1"),
        ({"mean_regret": 0.02}, "are not 0 <= mean <= worst"),
        ({"worst_regret": math.nan}, "are not 0 <= mean <= worst"),
        ({"worst_regret": math.inf}, "are not 0 <= mean <= worst"),
    ],
)
def test_impossible_evidence_is_refused(
    make_entry: Callable[..., TunedEntry], changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(TunedConfigError, match=message):
        replace(make_entry().evidence, **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"specs": 0}, "checked on 0 specs"),
        ({"rank_correlation": 1.1}, "rank correlation 1.1"),
        ({"top5_regret": 0.5, "first_regret": 0.4}, "are not 0 <= top5 <= first"),
        ({"first_regret": math.inf}, "are not 0 <= top5 <= first"),
        ({"top5_regret": math.nan}, "are not 0 <= top5 <= first"),
        ({"error": math.nan}, "error nan of a cost model"),
    ],
)
def test_impossible_checks_of_the_cost_model_are_refused(
    make_entry: Callable[..., TunedEntry], changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(TunedConfigError, match=message):
        replace(make_entry(kind="predicted").evidence, model=replace(HELD_OUT, **changes))


def test_a_check_of_the_cost_model_does_not_go_with_measurements(make_entry: Callable[..., TunedEntry]) -> None:
    with pytest.raises(TunedConfigError, match="beside measured evidence"):
        replace(make_entry().evidence, model=HELD_OUT)


def test_two_timings_of_one_workload_are_refused(make_entry: Callable[..., TunedEntry]) -> None:
    evidence = make_entry().evidence
    with pytest.raises(TunedConfigError, match="workload b4-h32x8-q1024-k1024 has two timings"):
        replace(evidence, timings=evidence.timings * 2)


def test_only_sixteen_bit_dtypes_share_a_rule(make_entry: Callable[..., TunedEntry]) -> None:
    entry = make_entry()
    assert replace(entry, dtypes=("fp16", "bf16")).dtypes == ("bf16", "fp16")
    for dtypes in [("bf16", "fp32"), ("fp16",), (), ("bf16", "bf16"), ("bf16", "fp8")]:
        with pytest.raises(TunedConfigError, match="a rule timed in bf16 serves bf16; fp16 and bf16 may share"):
            replace(entry, dtypes=dtypes)
    with pytest.raises(TunedConfigError, match="a rule timed in fp32 serves fp32"):
        replace(make_entry(dtype="fp32"), dtypes=("bf16", "fp32"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"worst_ratio": 1.01}, "worst_ratio 1.01 is above 1: the kernel is not exact"),
        ({"worst_ratio": math.nan}, "worst_ratio nan is above 1"),
        ({"where": "elsewhere"}, "neither gpu nor interpreter"),
        ({"dtypes": ("fp16",)}, "measured in bf16, proven only in fp16"),
    ],
)
def test_a_rule_without_proof_is_refused(
    make_entry: Callable[..., TunedEntry], changes: dict[str, Any], message: str
) -> None:
    entry = make_entry()
    with pytest.raises(TunedConfigError, match=message):
        replace(entry, proof=replace(entry.proof, **changes))


def test_a_predicted_rule_may_be_proven_in_other_dtypes(make_entry: Callable[..., TunedEntry]) -> None:
    entry = make_entry(kind="predicted")
    proof = replace(entry.proof, where="interpreter", dtypes=("fp16", "fp32"))
    assert replace(entry, proof=proof).spec.dtype == "bf16"


def test_entries_are_sorted_however_they_come(
    make_entry: Callable[..., TunedEntry], make_file: Callable[..., TunedFile]
) -> None:
    entries = [
        make_entry(head_dim=64, head_dim_v=64),
        make_entry(head_dim=64, head_dim_v=64, dtype="fp32"),
        make_entry(causal=False, high=512),
        make_entry(causal=False, low=513),
        make_entry(causal=False, dropout=True),
        make_entry(causal=False, alibi=True),
        make_entry(causal=False, softcap=True),
        make_entry(),
        make_entry(head_dim=192),
    ]
    assert list(make_file(*reversed(entries)).entries) == entries
    assert make_file(*entries[3:], *entries[:3]) == make_file(*entries)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schema": 2}, "schema 2 is not 1"),
        ({"gpu": "../x"}, r"gpu '\.\./x' is not a slug such as nvidia-h200"),
        ({"gpu": "NVIDIA H200"}, "is not a slug"),
        ({"gpu": ""}, "is not a slug"),
        ({"op": "sideways"}, "op 'sideways' is not one of forward"),
    ],
)
def test_impossible_files_are_refused(
    make_file: Callable[..., TunedFile], changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(TunedConfigError, match=message):
        make_file(**changes)


def test_two_rules_for_one_case_are_refused(
    make_entry: Callable[..., TunedEntry], make_file: Callable[..., TunedFile]
) -> None:
    with pytest.raises(
        TunedConfigError, match=r"two rules for one case: forward-bf16-d128-causal seqlen_k 1\.\.9 and "
    ):
        make_file(make_entry(low=9), make_entry(high=9))
    assert len(make_file(make_entry(low=10), make_entry(high=9)).entries) == 2
    assert len(make_file(make_entry(), make_entry(dtype="fp16")).entries) == 2  # measured apart


def test_an_unordered_rule_stands_beside_another_and_comes_first(
    make_entry: Callable[..., TunedEntry], make_file: Callable[..., TunedFile]
) -> None:
    ordered = make_entry(op="backward")
    unordered = replace(ordered, config=GluonSm90BackwardConfig(BLOCK_M=64, BLOCK_N=128, num_stages=2))
    file = make_file(ordered, unordered, op="backward")
    assert [entry.unordered for entry in file.entries] == [True, False]
    assert len({entry.label for entry in file.entries}) == 2
    with pytest.raises(TunedConfigError, match=r"two rules for one case: .* unordered and .* unordered"):
        make_file(unordered, replace(unordered, workloads=WorkloadRange(seqlen_k_min=9)), op="backward")
