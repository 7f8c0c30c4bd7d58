"""The pseudo-target: what must hold on every architecture at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from flashgen.compiler import architectures
from flashgen.compiler.crosscompile import compile_many
from flashgen.hardware.lookup import find_gpu
from flashgen.hardware.target import GpuTarget
from flashgen.outcome import Prediction, Reason, Rejected, Resources
from flashgen.resources.portable import one_gpu_an_arch, portable_target
from flashgen.resources.sram import sram_bound
from flashgen.tune import portable
from flashgen.tune.portable import PortableStages, PortableTl, PortableTlBackward, tune_portable
from flashgen.tune.request import USUAL_HEAD_DIMS, specs_of
from flashgen.tune.stages import Candidate, Compiled, typical_us
from flashgen.variants import with_variant
from tests.kernels.emission import TL_DTYPES
from tests.tune.replay import WORKLOAD, config, plain_proof, rejected, spec_of
from tests.tuned import entry_of

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
    monkeypatch.setattr(architectures, "compile_many", compile_by_tile)
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
    for spec in specs_of(USUAL_HEAD_DIMS, TL_DTYPES):
        configs = list(PortableTl().space(spec, target))
        assert configs, spec
        for each in configs:
            knobs = each.knobs()
            assert (knobs["tma"], knobs["programs_per_sm"], knobs["maxnreg"]) == (False, 0, None)
            assert each.num_stages <= 2


@pytest.mark.parametrize("head_dim", [16, 64, 96, 128, 192, 256])
def test_the_backward_has_few_tilings_and_more_than_one(head_dim: int) -> None:
    """Each costs a compilation for every architecture; where a feature makes one spill, the next stands in."""
    for dtype, op in (("bf16", "backward"), ("fp32", "backward")):
        spec, family = spec_of(dtype, head_dim, causal=True, op=op), PortableTlBackward()
        configs = list(family.space(spec, portable_target()))
        assert 1 < len(configs) <= 4
        for each in configs:
            knobs = each.knobs()
            assert (knobs["tma"], knobs["merged"], knobs["dp_first"]) == (False, False, False)
            assert sram_bound(spec, each, portable_target()) <= 65536


@pytest.mark.slow
@pytest.mark.parametrize("gpu", ["mi300x", "rtx-3090"])
def test_the_first_tiling_of_the_backward_compiles_without_spills(gpu: str) -> None:
    """On the architectures with least shared memory, of AMD's and NVIDIA's."""
    specs = [spec_of(head_dim=head_dim, causal=True, op="backward") for head_dim in USUAL_HEAD_DIMS]
    pairs = [(spec, PortableTlBackward().likely_good(spec, portable_target())[0]) for spec in specs]
    for _, needs in compile_many(pairs, find_gpu(gpu), jobs=1):
        assert isinstance(needs, Resources)
        assert needs.spill_bytes == 0
        assert needs.shared_bytes <= portable_target().smem_per_block


def test_both_passes_have_portable_rules() -> None:
    specs = specs_of([64], ["bf16", "fp16"], ["full", "full_dropout"], ["forward", "backward"])
    results = tune_portable(specs, jobs=1)
    assert [(result.spec.op, result.spec.variant, result.derived_from is None) for result in results] == [
        ("forward", "full", True),
        ("forward", "full_dropout", False),
        ("backward", "full", True),
        ("backward", "full_dropout", False),
    ]
    for result, family in zip(results, ("tl", "tl", "tl_backward", "tl_backward")):
        (entry,) = result.entries
        assert (entry.config.family, entry.dtypes) == (family, ("bf16", "fp16"))


def test_portable_rules_that_are_there_lend_their_configs() -> None:
    spec = spec_of(head_dim=64, op="backward")
    held = entry_of(spec, measured=False)
    (result,) = tune_portable([with_variant(spec, "full_sink")], jobs=1, held=(held,))
    (entry,) = result.entries
    assert entry.config == held.config
    assert result.counts.tried == 1


def test_the_rules_fit_the_smallest_gpu_and_are_predicted() -> None:
    results = tune_portable(specs_of([64], ["bf16", "fp16"]), jobs=1)
    assert len(results) == 4
    for result in results:
        (entry,) = result.entries
        assert entry.dtypes == ("bf16", "fp16")
        assert entry.evidence.kind == "predicted"
        assert entry.resources.shared_bytes <= 65536
        assert not (entry.spec.causal and entry.config.BLOCK_N == 32)
