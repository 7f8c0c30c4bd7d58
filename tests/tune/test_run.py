"""Whole runs on a replayed table."""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from flashgen.config import KernelConfig
from flashgen.errors import NoFeasibleConfig, SpecError
from flashgen.families import TL, TL_BACKWARD
from flashgen.hardware.lookup import find_gpu
from flashgen.outcome import Proof, Reason, Rejected, Resources
from flashgen.spec import AttentionSpec, Workload
from flashgen.store.entry import TunedEntry, WorkloadRange
from flashgen.tune.records import TrialRecord
from flashgen.tune.request import TuneRequest, lending, specs_of, unserved
from flashgen.tune.result import TuneResult
from flashgen.tune.run import tune
from flashgen.tune.stages import Candidate, Compiled, Stages, Times
from tests.tune.replay import H200, WORKLOAD, Replay, plain_proof, plain_resources, plain_us, rejected, spec_of
from tests.tuned import entry_of

CAUSAL = spec_of(causal=True)


def request(*specs: AttentionSpec, **changes: object) -> TuneRequest:
    fields: dict[str, object] = {
        "target": H200,
        "present": True,
        "specs": specs or (CAUSAL,),
        "workloads": (WORKLOAD,),
        "families": {family.name: family for family in (TL, TL_BACKWARD)},
        "trials": 24,
        "jobs": 2,
    }
    return TuneRequest(**(fields | changes))  # type: ignore[arg-type]


class Watch:
    """A Progress that keeps what it was told."""

    def __init__(self) -> None:
        self.begun: list[tuple[str, int, int, int]] = []
        self.records: list[TrialRecord] = []
        self.steps: list[str] = []
        self.results: list[TuneResult] = []

    def started(self, spec: AttentionSpec, enumerated: int, fit: int, trials: int) -> None:
        self.begun.append((spec.key, enumerated, fit, trials))

    def tried(self, spec: AttentionSpec, record: TrialRecord) -> None:
        self.records.append(record)

    def step(self, spec: AttentionSpec, text: str) -> None:
        self.steps.append(f"{spec.key} {text}")

    def ended(self, result: TuneResult) -> None:
        self.results.append(result)


def run(stages: Stages, asked: TuneRequest | None = None, watch: Watch | None = None) -> tuple[TuneResult, ...]:
    return tune(asked or request(), watch or Watch(), lambda _request, _workloads: stages)


def one(results: tuple[TuneResult, ...]) -> TuneResult:
    (result,) = results
    return result


def only(result: TuneResult) -> TunedEntry:
    """The entry of a spec that has one rule for all lengths."""
    (entry,) = result.entries
    return entry


def mixed(candidate: Candidate) -> float | Rejected:
    """Some of every way to fall."""
    kind = random.Random(candidate.config.key).randrange(6)
    if kind == 0:
        return rejected(Reason.LAUNCH)
    return math.nan if kind == 1 else plain_us(candidate)


def mixed_resources(candidate: Candidate) -> Resources | Rejected:
    kind, plain = random.Random(f"r{candidate.config.key}").randrange(6), plain_resources(candidate)
    if kind == 0:
        return rejected(Reason.COMPILE)
    return replace(plain, shared_bytes=300_000) if kind == 1 else replace(plain, spill_bytes=400 * (kind == 2))


def test_the_best_feasible_config_is_found_and_recorded() -> None:
    result = one(run(Replay()))
    entry = only(result)
    tried = [record.outcome.us for record in result.trials]  # type: ignore[union-attr]
    assert plain_us(Candidate(CAUSAL, entry.config)) == pytest.approx(min(tried)) == pytest.approx(100.0)
    assert entry.evidence.kind == "measured"
    assert (entry.evidence.candidates, entry.dtypes) == (24, ("bf16",))
    assert entry.resources == plain_resources(Candidate(CAUSAL, entry.config))


@pytest.mark.case("tuner-20")
@pytest.mark.parametrize("kind", ["measured", "predicted"])
def test_the_counts_add_up_and_every_fall_has_its_reason(kind: str) -> None:
    stages = Replay(
        kind=kind,  # type: ignore[arg-type]
        us=mixed,
        resources=mixed_resources,
        proof=lambda c: rejected(Reason.INEXACT) if c.config.num_stages == 3 else plain_proof(c),
    )
    watch = Watch()
    result = one(run(stages, request(trials=120, present=kind == "measured"), watch))
    counts, reasons = result.counts, result.reasons
    assert counts.enumerated == len(list(TL.space(CAUSAL, H200)))
    assert counts.tried == len(result.trials) == len(watch.records) == 120
    bound = counts.enumerated - counts.fit
    if kind == "measured":
        assert counts.enumerated >= counts.fit >= counts.tried >= counts.compiled >= counts.timed >= counts.exact > 0
        assert len(result.rejected) == bound + counts.tried - counts.timed + reasons[Reason.INEXACT]
        assert 0 < reasons[Reason.INEXACT] <= counts.timed - counts.exact
    assert sum(reasons.values()) == len(result.rejected)
    assert reasons[Reason.COMPILE] + reasons[Reason.SPILLS] + reasons[Reason.SRAM] - bound == 120 - counts.compiled
    assert {Reason.LAUNCH, Reason.TIMING} <= reasons.keys()
    assert watch.begun == [(CAUSAL.key, counts.enumerated, counts.fit, 120)]


def test_a_predicted_run_proves_only_what_would_win() -> None:
    stages = Replay(kind="predicted")
    result = one(run(stages, request(present=False)))
    assert only(result).evidence.kind == "predicted"
    assert (result.counts.timed, result.counts.exact, len(stages.proven)) == (24, 1, 1)


@pytest.mark.case("tuner-16")
def test_the_fastest_loses_if_it_is_not_exact() -> None:
    def proof(candidate: Candidate) -> object:
        return rejected(Reason.INEXACT) if candidate.config.BLOCK_N == 64 else plain_proof(candidate)

    result = one(run(Replay(proof=proof)))  # type: ignore[arg-type]
    assert only(result).config.BLOCK_N != 64
    assert result.reasons[Reason.INEXACT] > 0


@pytest.mark.case("tuner-05")
def test_with_the_first_candidate_wrong_a_right_one_still_wins() -> None:
    first = TL.likely_good(CAUSAL, H200)[0]
    stages = Replay(proof=lambda c: rejected(Reason.INEXACT) if c.config == first else plain_proof(c))
    result = one(run(stages))
    assert stages.proven[0][0].config == first
    assert only(result).config != first


@pytest.mark.case("optuna-05")
@pytest.mark.case("optuna-07")
def test_when_nothing_works_the_error_counts_every_reason_and_gives_numbers() -> None:
    def resources(candidate: Candidate) -> Resources | Rejected:
        if candidate.config.num_stages == 1:
            return rejected(Reason.COMPILE, "PassManager::run failed")
        return replace(plain_resources(candidate), shared_bytes=240_000 + candidate.config.BLOCK_M)

    watch = Watch()
    with pytest.raises(NoFeasibleConfig) as caught:
        run(Replay(resources=resources), request(), watch)
    text, result = str(caught.value), watch.results[0]
    assert not result.entries
    assert result.failure == text
    assert "24 tried, 0 compiled, 0 timed, 0 exact" in text
    for reason, number in result.reasons.items():
        assert any(line.split()[:2] == [reason, f"{number},"] for line in text.splitlines())
    assert "PassManager::run failed" in text
    needs = [r.outcome.resources.shared_bytes for r in result.trials if r.outcome.resources]  # type: ignore[union-attr]
    assert f"smallest need {min(needs)} bytes, limit {H200.smem_per_block} bytes" in text
    assert "next:" in text


def test_a_spec_that_no_family_writes_says_so() -> None:
    with pytest.raises(NoFeasibleConfig, match="bf16"):
        run(Replay(), request(spec_of("bf16"), target=replace(H200, slug="old-gpu", has_bf16=False)))


def test_one_spec_without_a_rule_does_not_lose_the_others() -> None:
    full, watch = spec_of(), Watch()
    stages = Replay(resources=lambda c: rejected(Reason.COMPILE) if c.spec == full else plain_resources(c))
    results = run(stages, request(full, CAUSAL), watch)
    assert [bool(result.entries) for result in results] == [False, True]
    assert watch.results == list(results)


def test_windows_take_the_finalists_of_causal_in_order() -> None:
    windows = (spec_of(window=True), spec_of(window=True, softcap=True))
    stages = Replay()
    results = {result.spec: result for result in run(stages, request(*windows, CAUSAL))}
    assert list(results) == [CAUSAL, *windows]
    for window in windows:
        entry, causal = only(results[window]), only(results[CAUSAL])
        assert entry.config == causal.config
        assert results[window].derived_from == CAUSAL
        assert results[window].counts.tried == 1
        assert (Candidate(window, entry.config), True) in stages.proven


def test_a_finalist_that_does_not_work_with_a_window_gives_way_to_the_next() -> None:
    window = spec_of(window=True)
    winner = only(one(run(Replay())))

    def resources(candidate: Candidate) -> Resources | Rejected:
        if candidate == Candidate(window, winner.config):
            return rejected(Reason.COMPILE)
        return plain_resources(candidate)

    derived = run(Replay(resources=resources), request(CAUSAL, window))[1]
    assert only(derived).config != winner.config
    assert derived.counts.tried == 2
    assert derived.reasons == {Reason.COMPILE: 1}


def test_a_window_alone_or_without_a_working_finalist_is_searched() -> None:
    window = spec_of(window=True)
    assert one(run(Replay(), request(window))).derived_from is None
    finalists: set[KernelConfig] = set()

    def resources(candidate: Candidate) -> Resources | Rejected:
        if candidate.spec != window:
            finalists.add(candidate.config)
        elif candidate.config in finalists:
            return rejected(Reason.COMPILE)
        return plain_resources(candidate)

    result = run(Replay(resources=resources), request(CAUSAL, window, trials=40))[1]
    assert result.derived_from is None
    assert result.entries


def test_features_take_the_finalists_of_the_plain_kernel() -> None:
    featured = replace(CAUSAL, alibi=True, dropout=True)
    plain, derived = run(Replay(), request(featured, CAUSAL))
    assert only(derived).spec == featured
    assert only(derived).config == only(plain).config
    assert (derived.derived_from, derived.counts.tried) == (CAUSAL, 1)


def held_rule(spec: AttentionSpec, **knobs: int | bool) -> TunedEntry:
    return entry_of(spec, **{"BLOCK_M": 128, "BLOCK_N": 32, "num_warps": 4, "num_stages": 3} | knobs)


def test_a_rule_that_was_there_lends_its_config_where_the_run_has_no_finalists() -> None:
    featured, held = replace(CAUSAL, dropout=True), held_rule(CAUSAL)
    result = one(run(Replay(), request(featured, held=(held_rule(spec_of()), held))))
    assert only(result).config == held.config
    assert (result.derived_from, result.counts.tried) == (CAUSAL, 1)
    assert "with the config of forward-bf16-d128-causal, which was tuned before" in result.notes


def test_finalists_of_the_run_come_before_rules_that_were_there() -> None:
    featured, held = replace(CAUSAL, dropout=True), held_rule(CAUSAL)
    plain, derived = run(Replay(), request(CAUSAL, featured, held=(held,)))
    assert only(derived).config == only(plain).config != held.config


def test_a_rule_of_the_other_16_bit_dtype_lends_its_config_too() -> None:
    featured, held = replace(CAUSAL, dtype="fp16", dropout=True), held_rule(CAUSAL)
    result = one(run(Replay(), request(featured, held=(held,))))
    assert only(result).config == held.config


def test_rules_for_several_lengths_all_lend_their_configs_the_longest_first() -> None:
    short, long = held_rule(CAUSAL, num_stages=1), held_rule(CAUSAL)
    short = replace(short, workloads=WorkloadRange(seqlen_k_max=512))
    long = replace(long, workloads=WorkloadRange(seqlen_k_min=513))
    result = one(run(Replay(), request(replace(CAUSAL, dropout=True), held=(short, long))))
    assert [record.config for record in result.trials] == [long.config, short.config]
    assert only(result).config == short.config  # one length: as fast, and needs less shared memory


def test_where_no_lent_config_works_there_is_a_search() -> None:
    held = held_rule(CAUSAL)
    stages = Replay(resources=lambda c: rejected(Reason.COMPILE) if c.config == held.config else plain_resources(c))
    result = one(run(stages, request(replace(CAUSAL, dropout=True), held=(held,))))
    assert result.derived_from is None
    assert only(result).config != held.config


def test_a_measured_run_keeps_measured_rules_and_a_predicted_one_all() -> None:
    measured, predicted = entry_of(CAUSAL), entry_of(spec_of(), measured=False)
    assert lending([measured, predicted], present=True) == (measured,)
    assert lending([measured, predicted], present=False) == (measured, predicted)


def test_a_rule_serves_its_spec_in_every_dtype_it_has() -> None:
    asked = specs_of([64, 128], ["bf16", "fp16", "fp32"], ["causal", "causal_dropout"])
    found = unserved(asked, [entry_of(CAUSAL)])
    assert set(asked) - set(found) == {CAUSAL, replace(CAUSAL, dtype="fp16")}


def test_a_backward_is_searched_in_its_own_family() -> None:
    forward, backward = (spec_of(causal=True, op=op) for op in ("forward", "backward"))
    results = run(Replay(), request(backward, forward, trials=8))
    assert [result.spec for result in results] == [forward, backward]
    for result, family in zip(results, ("tl", "tl_backward")):
        assert {record.config.family for record in result.trials} == {family}
        assert only(result).spec == result.spec
        assert result.derived_from is None


def test_one_rule_serves_both_16_bit_dtypes_if_it_is_exact_in_both() -> None:
    fp16, stages = replace(CAUSAL, dtype="fp16"), Replay()
    entry = only(one(run(stages, request(CAUSAL, fp16))))
    assert entry.dtypes == ("bf16", "fp16")
    assert set(entry.proof.dtypes) == {"bf16", "fp16"}
    assert entry.proof.probes == 6
    assert (Candidate(fp16, entry.config), True) in stages.proven


def test_a_dtype_in_which_the_winner_is_not_exact_is_tuned_apart() -> None:
    fp16 = replace(CAUSAL, dtype="fp16")
    winner = only(one(run(Replay())))

    def proof(candidate: Candidate) -> object:
        if candidate == Candidate(fp16, winner.config):
            return rejected(Reason.INEXACT, "overflows")
        return plain_proof(candidate)

    shared, apart = run(Replay(proof=proof), request(CAUSAL, fp16))  # type: ignore[arg-type]
    assert (only(shared).dtypes, only(apart).dtypes) == (("bf16",), ("fp16",))
    assert only(apart).config != winner.config
    assert any("fp16 is tuned apart: inexact: overflows" in note for note in shared.notes)


def test_an_interrupt_while_the_other_dtype_is_proven_keeps_the_rule() -> None:
    def proof(candidate: Candidate) -> Proof:
        if candidate.spec.dtype == "fp16":
            raise KeyboardInterrupt
        return plain_proof(candidate)

    result = one(run(Replay(proof=proof), request(CAUSAL, replace(CAUSAL, dtype="fp16"), spec_of())))
    assert result.interrupted
    assert only(result).dtypes == ("bf16",)


def test_after_a_crash_in_the_other_dtype_it_is_tuned_apart() -> None:
    fp16 = replace(CAUSAL, dtype="fp16")
    winner = only(one(run(Replay()))).config
    victim = Candidate(fp16, winner)
    stages = Replay(proof=lambda c: rejected(Reason.CRASHED, "gone") if c == victim else plain_proof(c))
    shared, apart = run(stages, request(CAUSAL, fp16))
    assert (only(shared).dtypes, only(apart).dtypes) == (("bf16",), ("fp16",))
    assert only(apart).config != winner
    assert any("fp16 is tuned apart: crashed: gone" in note for note in shared.notes)


@pytest.mark.case("tuner-08")
def test_fp32_has_a_search_and_a_rule_of_its_own() -> None:
    fp16, fp32 = (replace(CAUSAL, dtype=dtype) for dtype in ("fp16", "fp32"))
    results = run(Replay(), request(fp16, fp32))
    assert [only(result).dtypes for result in results] == [("fp16",), ("fp32",)]
    assert all(result.derived_from is None for result in results)


@pytest.mark.case("optuna-04")
def test_a_run_that_is_repeated_with_its_storage_tries_nothing_twice(tmp_path: Path) -> None:
    path = tmp_path / "study.journal"
    first = one(run(Replay(), request(storage=path)))
    stages = Replay()
    again = one(run(stages, request(storage=path)))
    assert again.counts == first.counts
    assert (only(again).config, only(again).evidence) == (only(first).config, only(first).evidence)
    assert not stages.glanced  # nothing was searched
    assert stages.timed  # the finalists were timed,
    assert (Candidate(CAUSAL, only(again).config), True) in stages.proven  # and proven again
    more = one(run(Replay(), request(storage=path, trials=30)))
    assert more.counts.tried == 30
    assert len({record.config for record in more.trials}) == 30


def test_an_interrupt_keeps_the_best_so_far_and_ends_the_run() -> None:
    class Interrupted(Replay):
        def glance(self, compiled: Compiled, best_us: float) -> Times | Rejected:
            if len(self.glanced) == 10:
                raise KeyboardInterrupt
            return super().glance(compiled, best_us)

    result = one(run(Interrupted(), request(CAUSAL, spec_of(head_dim=64))))
    assert result.interrupted
    assert result.entries
    assert result.counts.timed == 10


def test_an_interrupt_before_anything_was_timed_is_no_error_either() -> None:
    def interrupt(candidate: Candidate) -> Resources:
        raise KeyboardInterrupt

    result = one(run(Replay(resources=interrupt)))
    assert result.interrupted
    assert not result.entries


@pytest.mark.case("tuner-22")
def test_a_run_survives_crashes_and_a_resumed_one_passes_those_configs_by(tmp_path: Path) -> None:
    path, victim = tmp_path / "study.journal", TL.likely_good(CAUSAL, H200)[1]
    stages = Replay(proof=lambda c: rejected(Reason.CRASHED, "gone") if c.config == victim else plain_proof(c))
    first = one(run(stages, request(storage=path)))
    assert (first.counts.tried, first.reasons[Reason.CRASHED]) == (24, 1)
    assert first.entries
    resumed = Replay(proof=stages.proof)
    result = one(run(resumed, request(storage=path, trials=30)))
    assert victim not in [candidate.config for candidate, _ in resumed.proven]
    assert (result.counts.tried, result.reasons[Reason.CRASHED]) == (30, 1)


def test_a_run_ends_in_time() -> None:
    result = one(run(Replay(), request(trials=1900, timeout_s=2.0)))
    assert 0 < result.counts.tried < 1900
    assert result.entries


def test_configs_that_were_not_told_apart_are_named() -> None:
    result = one(run(Replay(us=lambda candidate: 100.0)))
    assert only(result).evidence.ties == 7  # the finalists less the winner
    assert any("7 not told apart from the best: tl:" in note for note in result.notes)


def test_equal_runs_give_equal_entries() -> None:
    asked = request(CAUSAL, spec_of(), spec_of(window=True), present=False)
    first, again = (run(Replay(kind="predicted"), asked) for _ in range(2))
    assert [result.entries for result in first] == [result.entries for result in again]


SHORT, LONG = (Workload(batch=1, heads_q=8, heads_kv=8, seqlen_q=n, seqlen_k=n) for n in (512, 8192))


def two_us(candidate: Candidate) -> list[float]:
    """Blocks of 64 queries take 20 us for any workload; larger ones are faster for long sequences only."""
    return [20.0, 20.0] if candidate.config.BLOCK_M == 64 else [40.0, 10.0]


@pytest.mark.case("tuner-11")
def test_the_order_of_workloads_decides_nothing() -> None:
    rules = [
        [(entry.config, entry.workloads) for entry in one(run(Replay(us=us), request(workloads=lengths))).entries]
        for us, lengths in ((two_us, (SHORT, LONG)), (lambda candidate: two_us(candidate)[::-1], (LONG, SHORT)))
    ]
    assert rules[0] == rules[1]
    assert len(rules[0]) == 2


def test_a_rule_of_the_file_stays_where_the_best_is_not_clearly_faster() -> None:
    held = held_rule(CAUSAL, BLOCK_M=64, BLOCK_N=32, num_stages=3)
    for us, stays in ((100.2, True), (103.0, False)):
        stages = Replay(us=lambda c, us=us: us if c.config == held.config else plain_us(c))  # type: ignore[misc]
        assert (only(one(run(stages, request(held=(held,))))).config == held.config) == stays


def test_one_rule_serves_all_workloads_where_that_costs_little_and_says_how_much() -> None:
    def nearly_equal(candidate: Candidate) -> list[float]:
        return [20.0, 20.0] if candidate.config.BLOCK_M == 64 else [40.0, 19.8]

    entry = only(one(run(Replay(us=nearly_equal), request(workloads=(SHORT, LONG), trials=4))))
    assert entry.config.BLOCK_M == 64
    assert entry.workloads == WorkloadRange()
    assert [timing.workload for timing in entry.evidence.timings] == [SHORT, LONG]
    assert entry.evidence.worst_regret == pytest.approx(20.0 / 19.8 - 1, abs=1e-5)
    assert entry.evidence.mean_regret == pytest.approx(entry.evidence.worst_regret / 2, abs=1e-5)


def test_lengths_with_different_best_configs_have_a_rule_each_in_both_dtypes() -> None:
    fp16, stages = replace(CAUSAL, dtype="fp16"), Replay(us=two_us)
    result = one(run(stages, request(CAUSAL, fp16, workloads=(SHORT, LONG), trials=4)))
    short, long = result.entries
    assert [entry.config.BLOCK_M == 64 for entry in (short, long)] == [True, False]
    assert [str(entry.workloads) for entry in result.entries] == ["seqlen_k 1..2048", "seqlen_k 2049.."]
    assert [timing.workload for entry in result.entries for timing in entry.evidence.timings] == [SHORT, LONG]
    for entry in result.entries:
        assert entry.dtypes == ("bf16", "fp16")
        for spec in (CAUSAL, fp16):
            assert (Candidate(spec, entry.config), True) in stages.proven


def test_where_a_dtype_fails_with_one_of_several_rules_it_is_tuned_apart() -> None:
    fp16 = replace(CAUSAL, dtype="fp16")
    stages = Replay(
        us=two_us,
        proof=lambda c: rejected(Reason.INEXACT) if c.spec == fp16 and c.config.BLOCK_M != 64 else plain_proof(c),
    )
    shared, apart = run(stages, request(CAUSAL, fp16, workloads=(SHORT, LONG), trials=4))
    assert [entry.dtypes for entry in shared.entries] == [("bf16",)] * 2
    assert [(entry.dtypes, entry.config.BLOCK_M) for entry in apart.entries] == [(("fp16",), 64)]


def test_a_derived_spec_shares_the_lengths_by_its_own_times() -> None:
    def windows_differ(candidate: Candidate) -> list[float]:
        is_small = candidate.config.BLOCK_M == 64
        return two_us(candidate) if candidate.spec == CAUSAL else [20.0 - is_small, 20.0 - is_small]

    window, asked = spec_of(window=True), {"workloads": (SHORT, LONG), "trials": 4}
    causal, derived = run(Replay(us=two_us), request(CAUSAL, window, **asked))
    assert derived.derived_from == CAUSAL
    assert [(entry.config, entry.workloads) for entry in derived.entries] == [
        (entry.config, entry.workloads) for entry in causal.entries
    ]
    assert derived.counts.tried == 2
    causal, derived = run(Replay(us=windows_differ), request(CAUSAL, window, **asked))
    assert (len(causal.entries), only(derived).config.BLOCK_M) == (2, 64)


def test_two_rules_that_were_there_lend_their_configs_and_not_their_lengths() -> None:
    short = replace(held_rule(CAUSAL, BLOCK_M=64), workloads=WorkloadRange(seqlen_k_max=300))
    long = replace(held_rule(CAUSAL), workloads=WorkloadRange(seqlen_k_min=301))
    asked = request(replace(CAUSAL, dropout=True), held=(short, long), workloads=(SHORT, LONG))
    entries = one(run(Replay(us=two_us), asked)).entries
    assert [(entry.config, entry.workloads.seqlen_k_max) for entry in entries] == [
        (short.config, 2048),
        (long.config, None),
    ]


def test_a_request_that_asks_for_nothing_is_refused() -> None:
    with pytest.raises(SpecError, match="nothing to tune"):
        TuneRequest(target=H200, present=False, specs=())
    with pytest.raises(SpecError, match="trials 0 is not above zero"):
        request(trials=0)
    with pytest.raises(SpecError, match="variant 'windowed'"):
        specs_of([64], ["bf16"], ["windowed"])


def test_specs_of_gives_every_combination() -> None:
    specs = specs_of([64, 128], ["bf16", "fp16"])
    assert Counter(spec.variant for spec in specs) == {"full": 4, "causal": 4, "window": 4, "window_softcap": 4}


def test_workloads_default_to_16384_tokens() -> None:
    full = request(workloads=(), preset="full").workloads_of(spec_of(head_dim=64))
    assert [each.key for each in full] == [
        "b32-h32-q512-k512",
        "b16-h32-q1024-k1024",
        "b8-h32-q2048-k2048",
        "b4-h32-q4096-k4096",
        "b2-h32-q8192-k8192",
        "b1-h32-q16384-k16384",
        "b16-h32x8-q1024-k1024",
        "b4-h32x8-q4096-k4096",
        "b1-h32x8-q16384-k16384",
    ]
    assert {each.batch * each.seqlen_q for each in full} == {16384}
    assert [each.seqlen_q for each in request(workloads=()).workloads_of(CAUSAL)] == [4096]
    assert find_gpu("h200") == H200


def test_a_search_begins_with_what_was_measured_before_and_with_what_won_for_its_neighbours() -> None:
    held = replace(entry_of(CAUSAL), config=TL.config({"BLOCK_M": 64, "BLOCK_N": 32, "num_warps": 4, "num_stages": 1}))
    stages = Replay()
    full, causal = spec_of(), CAUSAL
    results = run(stages, request(full, causal, held=(held,)))
    tried = [candidate.config for candidate, _ in stages.proven if candidate.spec == causal]
    assert tried[0] == held.config
    winner = next(only(result).config for result in results if result.spec == full)
    assert tried.index(winner) == 1


def test_a_prediction_does_not_begin_with_what_was_predicted_before() -> None:
    held = replace(entry_of(CAUSAL), config=TL.config({"BLOCK_M": 64, "BLOCK_N": 32, "num_warps": 4, "num_stages": 1}))
    watch = Watch()
    run(Replay(kind="predicted"), request(held=(held,), present=False), watch)
    assert watch.records[0].config != held.config
