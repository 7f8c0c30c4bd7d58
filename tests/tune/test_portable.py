"""The pseudo-target: what must hold on every architecture at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from flashgen.hardware.target import GpuTarget
from flashgen.outcome import Prediction, Reason, Rejected, Resources
from flashgen.spec import DTYPES
from flashgen.tune import portable
from flashgen.tune.portable import PortableStages, PortableTl, one_gpu_an_arch, portable_target, tune_portable
from flashgen.tune.request import USUAL_HEAD_DIMS, specs_of
from flashgen.tune.stages import Candidate, Compiled, typical_us
from tests.tune.replay import WORKLOAD, config, plain_proof, rejected, spec_of

SMALL, LARGE = config(32, 16, 4, 1), config(128, 64, 8, 2)


def compile_by_tile(
    candidates: Sequence[Candidate], target: GpuTarget, jobs: int
) -> Iterator[tuple[int, Resources | Rejected]]:
    """Bytes that grow with the tile and differ by architecture; sm_80 has no compiler, sm_90 refuses BLOCK_N 32."""
    for index, (spec, each) in reversed(list(enumerate(candidates))):
        if target.arch == "sm_80" or (target.arch == "sm_90" and each.BLOCK_N == 32 and spec.causal):
            yield index, rejected(Reason.COMPILE, "refused")
        else:
            shared = each.BLOCK_M * each.BLOCK_N * 4 * each.num_stages + (512 if target.arch == "sm_90" else 0)
            yield index, Resources(shared_bytes=shared, registers=100, spill_bytes=0, num_warps=each.num_warps)


@pytest.fixture(autouse=True)
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(portable, "compile_many", compile_by_tile)
    monkeypatch.setattr(portable, "interpreted_proof", lambda candidate, seed: plain_proof(candidate))


def test_resources_are_the_largest_over_the_architectures() -> None:
    stages = PortableStages((WORKLOAD,), jobs=1, seed=0)
    answers = dict(stages.compile([Candidate(spec_of(), SMALL), Candidate(spec_of(causal=True), config(64, 32, 4))]))
    assert isinstance(answers[0], Resources)
    assert answers[0].shared_bytes == 32 * 16 * 4 + 512
    assert answers[1] == rejected(Reason.COMPILE, "sm_90: refused")


def test_an_architecture_without_a_compiler_is_left_out_and_named() -> None:
    compiled, missing = PortableStages((WORKLOAD,), jobs=1, seed=0).notes()
    assert "sm_80" not in compiled
    assert "sm_90" in compiled
    assert "sm_80" in missing
    assert "refused" in missing


def test_times_lie_between_those_of_the_fastest_and_the_slowest_gpu() -> None:
    stages = PortableStages((WORKLOAD,), jobs=1, seed=0)
    candidate = Candidate(spec_of(), LARGE)
    ((_, resources),) = stages.compile([candidate])
    assert isinstance(resources, Resources)
    (time,) = stages.glance(Compiled(candidate=candidate, resources=resources), 0.0)  # type: ignore[misc]
    assert isinstance(time, Prediction)
    from flashgen.resources.cost import predict

    single = [predict(*candidate, target, WORKLOAD, resources).us for target in one_gpu_an_arch()]
    assert min(single) < typical_us(time) < max(single)


def test_every_usual_spec_has_configs_that_use_no_knob_of_few_gpus() -> None:
    target = portable_target()
    for spec in specs_of(USUAL_HEAD_DIMS, DTYPES):
        configs = list(PortableTl().space(spec, target))
        assert configs, spec
        for each in configs:
            knobs = each.knobs()
            assert (knobs["tma"], knobs["programs_per_sm"], knobs["maxnreg"]) == (False, 0, None)
            assert each.num_stages <= 2


def test_the_rules_fit_the_smallest_gpu_and_are_predicted() -> None:
    results = tune_portable(specs_of([64], ["bf16", "fp16"]), jobs=1)
    assert len(results) == 4
    for result in results:
        entry = result.entry
        assert entry is not None
        assert entry.dtypes == ("bf16", "fp16")
        assert entry.evidence.kind == "predicted"
        assert entry.resources.shared_bytes <= 65536
        assert not (entry.spec.causal and entry.config.BLOCK_N == 32)
