"""The matrix of rules and GPUs: compiled once an architecture, judged by every GPU's own limits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from flashgen.compiler import portability
from flashgen.compiler.crosscompile import Unit
from flashgen.compiler.portability import Cell, Subject, Verdict, matrix, of_config, of_file, of_module
from flashgen.config import KernelConfig
from flashgen.families import TlConfig
from flashgen.hardware.known import KNOWN
from flashgen.hardware.lookup import find_gpu
from flashgen.hardware.target import GpuTarget
from flashgen.outcome import Reason, Rejected, Resources
from flashgen.spec import AttentionSpec
from tests.tuned import entry_of, file_of

SPEC = AttentionSpec(dtype="bf16", head_dim=128, head_dim_v=128, causal=True)
ALL = [gpu.target for gpu in KNOWN.values()]
CONFIG = TlConfig(BLOCK_M=128, BLOCK_N=64, num_warps=8, num_stages=3)
MIDDLE = Resources(shared_bytes=114688, registers=200, spill_bytes=0, num_warps=8)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The architectures that were compiled for; every kernel becomes MIDDLE, gfx942 has no compiler."""
    compiled: list[str] = []

    def compile_units(units: Sequence[Unit], target: GpuTarget, jobs: int) -> Iterator[tuple[int, Any]]:
        compiled.append(target.arch)
        for index, unit in reversed(list(enumerate(units))):
            yield index, answers(unit, target)

    monkeypatch.setattr(portability, "compile_units", compile_units)
    monkeypatch.setattr(
        portability, "missing_compiler", lambda target, jobs: "no such target" if target.arch == "gfx942" else None
    )
    return compiled


def answers(unit: Unit, target: GpuTarget) -> Resources | Rejected:
    if unit.spec.window:
        return Rejected(reason=Reason.COMPILE, detail="PassManager::run failed")
    return replace(MIDDLE, spill_bytes={"sm_80": 8, "sm_100": 136}.get(target.arch, 0))


def subject(gpu: str = "", spec: AttentionSpec = SPEC, config: KernelConfig = CONFIG) -> Subject:
    return of_config("a rule", spec, config, gpu)


def cells_of(subject: Subject, *targets: GpuTarget) -> dict[str, Cell]:
    (row,) = matrix([subject], targets or ALL, jobs=1)
    return {cell.target.slug: cell for cell in row.cells}


def test_each_architecture_is_compiled_for_once_and_each_gpu_judged(asked: list[str]) -> None:
    rows = matrix([subject(), subject()], ALL, jobs=1)
    archs = list(dict.fromkeys(target.arch for target in ALL))
    assert asked == [arch for arch in archs if arch not in ("sm_75", "gfx942")]
    assert [[cell.target for cell in row.cells] for row in rows] == [ALL, ALL]


def test_a_config_for_large_gpus_exceeds_the_small_ones(asked: list[str]) -> None:
    cells = cells_of(subject())
    for slug in ("nvidia-a10", "nvidia-l4", "nvidia-geforce-rtx-4090", "nvidia-geforce-rtx-5090"):
        assert (cells[slug].verdict, cells[slug].runs) == (Verdict.EXCEEDS, False)
        assert cells[slug].detail == f"needs 114688 bytes of shared memory, {slug} has 101376"
    for slug in ("nvidia-h100", "nvidia-h200"):
        assert (cells[slug].verdict, cells[slug].runs, cells[slug].resources) == (Verdict.FITS, True, MIDDLE)


def test_few_spills_run_and_many_should_not(asked: list[str]) -> None:
    cells = cells_of(subject())
    assert (cells["nvidia-a100"].verdict, cells["nvidia-a100"].runs) == (Verdict.SPILLS, True)
    assert (cells["nvidia-b200"].verdict, cells["nvidia-b200"].runs) == (Verdict.SPILLS, False)
    assert "spills 136 bytes a thread at 200 registers, limit 128" in cells["nvidia-b200"].detail


def test_what_no_family_writes_or_the_compiler_refuses_is_unsupported(asked: list[str]) -> None:
    tma = cells_of(subject(config=replace(CONFIG, tma=True)))
    assert "tensor-core code from sm_80 on" in tma["nvidia-t4"].detail
    assert tma["nvidia-a100"].detail == "tma needs sm_90 or later; nvidia-a100 is sm_80"
    assert tma["nvidia-h200"].verdict is Verdict.FITS
    windowed = cells_of(subject(spec=replace(SPEC, causal=False, window=True)))["nvidia-h200"]
    assert (windowed.verdict, windowed.detail) == (Verdict.UNSUPPORTED, "sm_90: PassManager::run failed")
    assert asked == ["sm_90", "sm_100", "sm_120", *asked[3:]]  # with tma, nothing is compiled for the others


def test_without_a_compiler_nothing_is_known(asked: list[str]) -> None:
    cell = cells_of(subject())["amd-instinct-mi300x"]
    assert (cell.verdict, cell.runs, cell.resources, cell.detail) == (Verdict.UNKNOWN, False, None, "no such target")


def test_a_rule_is_broken_only_where_it_is_meant_to_run(asked: list[str]) -> None:
    rows = matrix([subject(""), subject("nvidia-h200"), subject("nvidia-l4"), subject("portable")], ALL, jobs=1)
    small = [target.slug for target in ALL if target.smem_per_block == 101376]
    assert [[cell.target.slug for cell in row.broken] for row in rows] == [
        [],
        [],
        ["nvidia-l4"],
        [slug for slug in KNOWN if slug in small or slug == "nvidia-b200"],  # neither the T4 nor what is not known
    ]
    (portable,) = matrix([subject("portable", config=replace(CONFIG, tma=True))], [find_gpu("a100")], jobs=1)
    assert [cell.detail for cell in portable.broken] == ["tma needs sm_90 or later; nvidia-a100 is sm_80"]


def test_rules_of_a_file_are_for_its_gpu() -> None:
    entry = entry_of(SPEC, tma=True)
    (found,) = of_file(file_of("nvidia-h200", [entry]))
    assert (found.name, found.gpu, found.tma, found.unit.spec) == (entry.label, "nvidia-h200", True, SPEC)
    assert found.unit.name == entry.config.key


def test_rules_of_a_module_keep_their_number_and_the_gpu_of_their_pattern() -> None:
    spec = {"op": "forward", "dtype": "bf16", "head_dim": 64, "head_dim_v": 64, "causal": True}
    rule = {"name": "_attn_fwd_causal", "tiles": "tile 64x32", "spec": spec, "tma": False}
    patterns = ["NVIDIA H200", "NVIDIA Z1", None]
    found = of_module("text", [rule | {"pattern": pattern} for pattern in patterns])
    assert [each.gpu for each in found] == ["nvidia-h200", "NVIDIA Z1", "portable"]
    assert [each.unit.rule for each in found] == [0, 1, 2]
    assert {each.unit.source for each in found} == {"text"}
    assert {each.name for each in found} == {"forward-bf16-d64-causal, tile 64x32"}
    assert all(each.obstacle(find_gpu("t4")) and not each.obstacle(find_gpu("a100")) for each in found)
