"""The real compiler without a GPU: in processes of its own, since the suite runs under Triton's interpreter."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from flashgen.compiler import crosscompile
from flashgen.compiler.cache import recall, remember
from flashgen.compiler.classify import compile_failure, one_line, run_failure
from flashgen.compiler.crosscompile import compile_many
from flashgen.families import TlBackwardConfig, TlConfig
from flashgen.hardware.lookup import find_gpu
from flashgen.outcome import Reason, Rejected, Resources
from flashgen.resources.sram import sram_bound
from flashgen.spec import AttentionSpec

SPEC = AttentionSpec(dtype="bf16", head_dim=64, head_dim_v=64, causal=True)
PLAIN = TlConfig(BLOCK_M=64, BLOCK_N=32, num_warps=4, num_stages=2)


@pytest.fixture
def cold_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FLASHGEN_CACHE_DIR", str(tmp_path))
    crosscompile._pool.cache_clear()  # its processes would keep the other cache
    return tmp_path


def test_same_source_needs_other_resources_on_other_archs(cold_cache: Path) -> None:
    tma = TlConfig(BLOCK_M=64, BLOCK_N=64, num_warps=4, num_stages=3, tma=True)
    staged = TlConfig(BLOCK_M=128, BLOCK_N=64, num_warps=8, num_stages=3)
    pairs = [(SPEC, staged), (SPEC, tma)]
    h200 = dict(compile_many(pairs, find_gpu("h200"), 2))
    a100 = dict(compile_many(pairs[:1], find_gpu("a100"), 2))
    for index, answer in h200.items():
        assert isinstance(answer, Resources), answer
        assert answer.num_warps == pairs[index][1].num_warps
        assert 16 <= answer.registers <= 255
        assert sram_bound(*pairs[index], find_gpu("h200")) <= answer.shared_bytes <= find_gpu("h200").smem_per_block
    assert isinstance(a100[0], Resources)
    assert a100[0] != h200[0]


def test_all_kernels_of_a_backward_are_compiled_and_the_worst_counts(cold_cache: Path) -> None:
    spec = AttentionSpec(op="backward", dtype="bf16", head_dim=64, head_dim_v=64, bias=True)
    config = TlBackwardConfig.of_passes((16, 16, 1, 1), (16, 16, 1, 1))
    ((_, with_dbias),) = compile_many([(spec, config)], find_gpu("a100"), 1)
    ((_, without),) = compile_many([(replace(spec, bias=False), config)], find_gpu("a100"), 1)
    assert isinstance(with_dbias, Resources)
    assert isinstance(without, Resources)
    assert with_dbias.shared_bytes > without.shared_bytes  # the bias' gradient has larger tiles, of its own


def test_one_process_answers_for_each_target_anew(cold_cache: Path) -> None:
    staged = TlConfig(BLOCK_M=128, BLOCK_N=64, num_warps=8, num_stages=3)
    answers = [dict(compile_many([(SPEC, staged)], find_gpu(gpu), 1))[0] for gpu in ("h200", "a100")]
    assert all(isinstance(answer, Resources) for answer in answers)
    assert len(set(answers)) == 2


def test_answers_come_from_the_cache_the_second_time(cold_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = dict(compile_many([(SPEC, PLAIN)], find_gpu("a100"), 1))
    monkeypatch.setattr(crosscompile, "_submit", lambda *_: pytest.fail("a compiler was asked"))
    assert dict(compile_many([(SPEC, PLAIN)], find_gpu("a100"), 1)) == first


def test_what_the_compiler_refuses_is_data(cold_cache: Path) -> None:
    three_warps = replace(PLAIN)
    object.__setattr__(three_warps, "num_warps", 3)  # the config's own check would refuse it
    ((_, answer),) = compile_many([(SPEC, three_warps)], find_gpu("a100"), 1)
    assert isinstance(answer, Rejected)
    assert answer.reason == Reason.COMPILE
    assert "\n" not in answer.detail


def test_a_cache_entry_that_was_cut_short_is_no_answer(cold_cache: Path) -> None:
    remember("key", Rejected(reason=Reason.COMPILE, detail="why"))
    assert recall("key") == Rejected(reason=Reason.COMPILE, detail="why")
    path = cold_cache / "compile" / "key.json"
    path.write_text(path.read_text()[:10])
    assert recall("key") is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("CUDA error: an illegal memory access was encountered", Reason.CRASHED),
        ("CUDA error: device-side assert triggered", Reason.CRASHED),
        ("Triton Error [CUDA]: an illegal instruction was encountered", Reason.CRASHED),
        ("CUDA error: uncorrectable ECC error encountered", Reason.KILLED),
        ("CUDA out of memory. Tried to allocate 20.00 GiB.", Reason.LAUNCH),
        ("out of resource: shared memory, Required: 263168, Hardware limit: 232448", Reason.LAUNCH),
        ("something else", Reason.COMPILE),
    ],
)
def test_run_failures_are_told_apart(text: str, reason: Reason) -> None:
    assert run_failure(RuntimeError(text)).reason == reason


def test_details_are_one_bounded_line() -> None:
    detail = compile_failure(RuntimeError("first\n" + "x" * 10_000 + "\nlast")).detail
    assert "\n" not in detail
    assert len(detail) <= 240
    assert detail.startswith("RuntimeError: first")
    assert detail.endswith("last")
    assert one_line(ValueError("short")) == "ValueError: short"
