"""The real thing: a short run on a GPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from flashgen.compiler.crosscompile import Unit, unit_of
from flashgen.config import KernelConfig
from flashgen.families import TlBackwardConfig
from flashgen.hardware.detect import detect_gpus
from flashgen.outcome import Measurement, Proof, Reason, Rejected, Resources
from flashgen.spec import OPS, AttentionSpec, Workload
from flashgen.tune import measured
from flashgen.tune.cuda_clock import CudaClock
from flashgen.tune.gpu_worker import GpuWorker
from flashgen.tune.measured import MeasuredStages
from flashgen.tune.request import TuneRequest, specs_of
from flashgen.tune.run import tune
from flashgen.tune.stages import Candidate, Compiled
from flashgen.tune.timing import summarise
from tests.tune.replay import config, spec_of

pytestmark = pytest.mark.gpu

WORKLOAD = Workload(batch=2, heads_q=8, heads_kv=8, seqlen_q=2048, seqlen_k=2048)


def test_the_clock_times_work_on_the_gpu_and_not_its_launch() -> None:
    import torch

    x = torch.ones(64 * 1024 * 1024, device="cuda")
    clock = CudaClock(0, detect_gpus()[0].target.l2_bytes)
    one, two = clock.sample([lambda: x.mul_(1.0), lambda: x.mul_(1.0).mul_(1.0)], 40)
    one_found, two_found = summarise(one), summarise(two)
    assert isinstance(one_found, Measurement)
    assert isinstance(two_found, Measurement)
    assert 1.7 < two_found.median_us / one_found.median_us < 2.3
    # A launch that the host takes long over costs the GPU no more.
    (slow,) = clock.sample([lambda: (sum(range(20_000)), x.mul_(1.0))], 40)
    slow_found = summarise(slow)
    assert isinstance(slow_found, Measurement)
    assert slow_found.median_us < 1.3 * one_found.median_us


PASSES = TlBackwardConfig(
    BLOCK_M=32,
    BLOCK_N=64,
    num_warps=4,
    num_stages=1,
    BLOCK_M_DQ=64,
    BLOCK_N_DQ=32,
    num_warps_dq=4,
    num_stages_dq=1,
)


@pytest.mark.parametrize(
    "candidate",
    [
        Candidate(spec_of("fp16", 64, causal=True), config(64, 64, 4, 2)),
        Candidate(spec_of("fp16", 64, causal=True, alibi=True, dropout=True), config(64, 64, 4, 2)),
        Candidate(spec_of("fp16", 64, causal=True, op="backward"), PASSES),
        Candidate(spec_of("fp16", 64, window=True, bias=True, sink=True, op="backward"), PASSES),
    ],
    ids=lambda candidate: candidate.spec.key,
)
def test_a_candidate_is_compiled_proven_and_timed(candidate: Candidate) -> None:
    target = detect_gpus()[0].target
    stages = MeasuredStages(target, 0, (WORKLOAD,), jobs=2, seed=1)
    ((_, resources),) = stages.compile([candidate])
    assert isinstance(resources, Resources)
    proof = stages.prove(candidate)
    assert isinstance(proof, Proof), proof
    assert (proof.where, proof.suite) == ("gpu", "candidate")
    compiled = Compiled(candidate=candidate, resources=resources)
    times = stages.glance(compiled, float("inf"))
    assert isinstance(times, tuple), times
    ((final,),) = stages.time([compiled])  # type: ignore[misc]
    assert isinstance(final, Measurement)
    assert final.median_us == pytest.approx(times[0].median_us, rel=0.15)  # type: ignore[union-attr]


FAULTS = """

@triton.jit
def _astray(x):
    tl.store(x + (1 << 40), 1.0)


@triton.jit
def _endless(x):
    while tl.load(x, volatile=True) != 12345.0:
        pass


_sound = _execute


def _execute(rule, q, *rest, **features):
    {fault}[(1,)](torch.ones(1, device=q.device))
    _sound(rule, q, *rest, **features)
"""


@pytest.mark.case("tuner-22")
def test_an_illegal_access_and_a_kernel_that_never_ends_cost_their_own_candidates_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLASHGEN_CACHE_DIR", str(tmp_path))
    target, spec = detect_gpus()[0].target, spec_of("fp16", 64)
    faults = {config(64, 64, 4, 1): "_astray", config(64, 32, 4, 1): "_endless"}

    def faulty(spec: AttentionSpec, config: KernelConfig) -> Unit:
        unit, fault = unit_of(spec, config), faults.get(config)
        return unit if fault is None else replace(unit, source=unit.source + FAULTS.format(fault=fault))

    monkeypatch.setattr(measured, "unit_of", faulty)
    with GpuWorker(0, target.l2_bytes, silence_s=45.0) as worker:
        stages = MeasuredStages(target, 0, (WORKLOAD,), jobs=2, seed=1, worker=worker)
        for each, reason in zip(faults, (Reason.CRASHED, Reason.TIMEOUT)):
            found = stages.prove(Candidate(spec, each))
            assert isinstance(found, Rejected)
            assert found.reason is reason, found.detail
            assert isinstance(stages.prove(Candidate(spec, config(64, 64, 4, 2))), Proof)


def test_a_short_run_gives_measured_rules_and_resumes(tmp_path: Path) -> None:
    device = detect_gpus()[0]
    asked = TuneRequest(
        target=device.target,
        present=True,
        index=device.index,
        specs=specs_of(
            [64], ["bf16", "fp16"] if device.target.has_bf16 else ["fp16"], ["causal", "window_dropout"], OPS
        ),
        workloads=(WORKLOAD,),
        trials=6,
        storage=tmp_path / "study.journal",
    )
    first = tune(asked)
    assert [len(result.entries) for result in first] == [1] * 4, [result.failure for result in first]
    assert [result.derived_from is None for result in first] == [True, False, True, False]
    (entry,) = first[0].entries
    assert entry.evidence.kind == "measured"
    assert entry.proof.suite == "full"
    assert tune(asked)[0].counts == first[0].counts
