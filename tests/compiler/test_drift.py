"""Rules against what they compile to now: what is a note, and what no longer holds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from flashgen.assets import tuned_configs_dir
from flashgen.compiler import architectures, drift
from flashgen.compiler.crosscompile import Unit
from flashgen.compiler.drift import Change, State, judge, recompile, targets_of
from flashgen.compiler.toolchain import toolchain_of
from flashgen.errors import UnknownGpu
from flashgen.hardware.lookup import find_gpu
from flashgen.hardware.target import GpuTarget
from flashgen.outcome import Reason, Rejected, Resources
from flashgen.resources.portable import one_gpu_an_arch
from flashgen.spec import AttentionSpec
from flashgen.store.entry import TunedEntry, TunedFile
from flashgen.store.files import read_tuned, tuned_path
from tests.tuned import entry_of, file_of

SPEC = AttentionSpec(dtype="bf16", head_dim=64, head_dim_v=64, causal=True)
H200, A10, MI300X = find_gpu("h200"), find_gpu("a10"), find_gpu("mi300x")


def entry(**made_with: str) -> TunedEntry:
    """A rule that was made with the tools that are here, but for those that are given."""
    return entry_of(SPEC, toolchain=replace(toolchain_of(entry_of(SPEC)), **made_with))


TODAY = entry().toolchain
RECORDED = entry().resources
MORE = replace(RECORDED, registers=200, spill_bytes=8)


def test_what_compiles_as_before_holds() -> None:
    found = judge(entry(), {H200: RECORDED}, TODAY)
    assert (found.state, found.holds, found.changes, found.why) == (State.AS_RECORDED, True, (), "")
    assert judge(entry(triton="3.5.0"), {H200: RECORDED}, TODAY).state is State.AS_RECORDED


def test_figures_that_another_triton_changed_are_a_note() -> None:
    found = judge(entry(triton="3.5.0"), {H200: MORE}, TODAY)
    assert (found.state, found.holds) == (State.DRIFTED, True)
    assert found.changes == (
        Change(what="registers", then=RECORDED.registers, now=200),
        Change(what="spill_bytes", then=0, now=8),
    )


def test_figures_that_differ_under_the_rules_own_triton_do_not_hold() -> None:
    found = judge(entry(), {H200: MORE}, TODAY)
    assert (found.state, found.holds) == (State.DIFFERS, False)
    assert f"triton {TODAY.triton} made it" in found.why


def test_other_kernels_do_not_hold_even_where_figures_are_alike() -> None:
    found = judge(entry(kernels="0123456789ab"), {H200: RECORDED}, TODAY)
    assert (found.state, found.holds) == (State.STALE, False)
    assert "0123456789ab" in found.why
    assert TODAY.kernels in found.why


@pytest.mark.parametrize(
    ("now", "state", "why"),
    [
        (
            replace(RECORDED, shared_bytes=101377),
            State.EXCEEDS,
            "needs 101377 bytes of shared memory, nvidia-a10 has 101376",
        ),
        (
            replace(RECORDED, registers=255, spill_bytes=136),
            State.SPILLS,
            "spills 136 bytes a thread at 255 registers, limit 128",
        ),
        (Rejected(reason=Reason.COMPILE, detail="PassManager::run failed"), State.REFUSED, "sm_86: PassManager::run"),
    ],
)
def test_what_cannot_run_any_more_does_not_hold_whichever_triton(
    now: Resources | Rejected, state: State, why: str
) -> None:
    for made_with in (entry(), entry(triton="3.5.0"), entry(kernels="0123456789ab")):
        found = judge(made_with, {A10: now}, TODAY)
        assert (found.state, found.holds) == (state, False)
        assert why in found.why


def test_a_portable_rule_is_as_good_as_on_its_worst_architecture() -> None:
    most = replace(RECORDED, registers=150)
    least = replace(RECORDED, shared_bytes=1024)
    assert judge(replace(entry(), resources=most), {A10: most, MI300X: least}, TODAY).state is State.AS_RECORDED
    found = judge(entry(), {H200: RECORDED, MI300X: replace(RECORDED, shared_bytes=70000)}, TODAY)
    assert found.state is State.EXCEEDS
    assert "needs 70000 bytes of shared memory, amd-instinct-mi300x has 65536" in found.why


def test_rules_are_compiled_for_all_targets_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, list[str]]] = []

    def compile_units(units: Sequence[Unit], target: GpuTarget, jobs: int) -> Iterator[tuple[int, Resources]]:
        asked.append((target.arch, [unit.spec.key for unit in units]))
        yield from ((index, RECORDED) for index in reversed(range(len(units))))

    monkeypatch.setattr(drift, "compile_units", compile_units)
    full = replace(entry(), spec=replace(SPEC, causal=False))
    file = file_of("portable", [entry(triton="3.5.0"), replace(full, toolchain=toolchain_of(full))])
    found = recompile(file, (A10, H200), jobs=1)
    assert asked == [(arch, [each.spec.key for each in file.entries]) for arch in ("sm_86", "sm_90")]
    assert [each.entry for each in found] == list(file.entries)
    assert {each.state for each in found} == {State.AS_RECORDED}


def test_portable_rules_are_compiled_for_every_architecture_that_has_a_compiler(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def compile_many(pairs: Sequence[object], target: GpuTarget, jobs: int) -> Iterator[tuple[int, object]]:
        yield 0, Rejected(reason=Reason.COMPILE, detail="no such target") if target.arch == "gfx942" else RECORDED

    monkeypatch.setattr(architectures, "compile_many", compile_many)
    assert [target.arch for target in targets_of("portable", 1)] == [
        target.arch for target in one_gpu_an_arch() if target.arch != "gfx942"
    ]
    assert targets_of("nvidia-h200", 1) == (H200,)
    with pytest.raises(UnknownGpu, match="nvidia-z1"):
        targets_of("nvidia-z1", 1)


def test_an_edited_file_is_found_out_by_the_compiler_itself(tmp_path: Path) -> None:
    small = entry_of(SPEC, toolchain=TODAY, BLOCK_N=16, num_stages=1)
    small = replace(small, toolchain=toolchain_of(small))
    (first,) = recompile(file_of("nvidia-a10", [small]), (A10,), jobs=1)
    assert first.now is not None
    true = replace(small, resources=first.now)
    edited = replace(small, resources=replace(first.now, registers=first.now.registers - 8))
    for each, state in ((true, State.AS_RECORDED), (edited, State.DIFFERS)):
        (found,) = recompile(file_of("nvidia-a10", [each]), (A10,), jobs=1)
        assert found.state is state


def test_shipped_rules_compile_to_what_their_file_says_or_have_drifted_with_triton() -> None:
    """Exactly to that under the triton that made them, which is the oldest that the suite is run with."""
    for op in ("forward", "backward"):
        file = read_tuned(tuned_path(tuned_configs_dir(), "nvidia-h200", op))
        few = TunedFile(gpu=file.gpu, op=file.op, command=file.command, entries=file.entries[:3])
        for found in recompile(few, targets_of(file.gpu, 1), jobs=2):
            assert found.state in (State.AS_RECORDED, State.DRIFTED, State.STALE), (found.entry.label, found.why)
