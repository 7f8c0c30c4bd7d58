"""Which rules of tuned configs an emitted module holds, and which of them a call gets."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from flashgen.codegen.emit import EmitRequest, emit
from flashgen.codegen.module import Row
from flashgen.codegen.rules import Case, cases_of, rule_sets
from flashgen.compiler.load import load_source
from flashgen.errors import TunedConfigError
from flashgen.hardware.known import KNOWN
from flashgen.store.entry import TunedEntry
from tests.kernels.emission import VARIANTS, spec_of
from tests.tuned import entry_of, usual_configs, usual_entries, write_configs

BF16, FP16 = spec_of("causal", "bf16", 64), spec_of("causal", "fp16", 64)


@pytest.fixture(autouse=True)
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "shipped"
    monkeypatch.setattr("flashgen.codegen.sources.tuned_configs_dir", lambda: directory)
    return directory


@pytest.fixture
def configs(tmp_path: Path) -> Path:
    return usual_configs(tmp_path / "configs")


def request(configs: Path, *gpus: str, **changes: object) -> EmitRequest:
    return EmitRequest(gpus=gpus or ("nvidia-h200",), configs=configs, **changes)  # type: ignore[arg-type]


def rows(*entries: TunedEntry) -> list[tuple[tuple[str, ...], int | None, int]]:
    """(dtypes, longest seqlen_k, BLOCK_M) of the rows of the causal variant, as the emitted table orders them."""
    made: list[Row] = [row for one in rule_sets(entries, cases_of(entries), ["causal"]) for row in one.rows]
    return [(row.dtypes, row.max_seqlen_k, row.config.BLOCK_M) for row in sorted(made, key=lambda row: row.order)]


def test_a_shared_rule_is_one_row() -> None:
    assert rows(entry_of(BF16)) == [(("bf16", "fp16"), None, 64)]


def test_rules_by_length_are_rows_by_length() -> None:
    short, long = entry_of(BF16, keys=(1, 1024)), entry_of(BF16, keys=(1025, None), BLOCK_M=128)
    assert rows(long, short) == [(("bf16", "fp16"), 1024, 64), (("bf16", "fp16"), None, 128)]


def test_a_rule_timed_in_the_dtype_comes_before_a_shared_one() -> None:
    shared, own = entry_of(BF16), entry_of(FP16, BLOCK_M=128)
    assert rows(shared, own) == [(("bf16",), None, 64), (("fp16",), None, 128)]


def test_a_shared_rule_keeps_the_lengths_that_the_dtypes_own_leaves() -> None:
    shared, own = entry_of(BF16), entry_of(FP16, keys=(1, 512), BLOCK_M=128)
    assert rows(shared, own) == [(("bf16",), None, 64), (("fp16",), 512, 128), (("fp16",), None, 64)]


def test_no_stand_in_is_emitted() -> None:
    """A rule is proven for its own kernel only: what a window lacks, the portable rules serve."""
    (sets,) = rule_sets([entry_of(BF16)], [Case(dtype="bf16", heads=(64, 64))], ["window"])
    assert (sets.rules, sets.serves_any_length) == ((), False)


def test_different_head_dims_of_qk_and_v() -> None:
    entry = entry_of(spec_of("causal", "bf16", 192, 128))
    assert cases_of([entry]) == {Case(dtype=dtype, heads=(192, 128)) for dtype in ("bf16", "fp16")}
    assert rows(entry) == [(("bf16", "fp16"), None, 64)]


def test_a_module_serves_what_the_gpus_rules_do(configs: Path) -> None:
    write_configs(configs, "portable", *usual_entries(32, 64, 128, measured=False))
    content = emit(request(configs)).content
    assert {row.spec.head_dim for row in content.portable} == {64, 128}
    assert {row.spec.variant for row in content.portable} == set(VARIANTS)
    assert emit(request(configs, head_dims=(32,))).content.gpus == ()


def test_an_fp32_rule_asks_for_fp32_of_its_own_head_dim_only(configs: Path) -> None:
    fp32 = usual_entries(64, dtype="fp32")
    write_configs(configs, "nvidia-h200", *usual_entries(64, 128), *fp32)
    write_configs(configs, "portable", *usual_entries(64, 128), *fp32)
    served = {(dtype, row.spec.head_dim) for row in emit(request(configs)).content.portable for dtype in row.dtypes}
    assert served == {("bf16", 64), ("fp16", 64), ("bf16", 128), ("fp16", 128), ("fp32", 64)}
    assert {d for row in emit(request(configs, head_dims=(128,))).content.portable for d in row.dtypes} == {
        "bf16",
        "fp16",
    }


@pytest.mark.parametrize(
    ("changes", "variants"),
    [
        ({}, {"full", "causal", "window", "window_softcap"}),
        ({"softcap": False}, {"full", "causal", "window"}),
        ({"window": False}, {"full", "causal"}),
    ],
)
def test_variants(changes: dict[str, bool], variants: set[str], configs: Path) -> None:
    content = emit(request(configs, **changes)).content
    assert {row.spec.variant for row in content.gpus[0].rows} == variants
    assert {row.spec.variant for row in content.portable} == variants


def test_shared_bytes_are_those_of_the_largest_portable_rule_that_is_used(configs: Path) -> None:
    entries = [*usual_entries(64, shared_bytes=10000), *usual_entries(128, shared_bytes=50000)]
    write_configs(configs, "portable", *entries)
    assert emit(request(configs)).content.portable_shared_bytes == 50000
    assert emit(request(configs, head_dims=(64,))).content.portable_shared_bytes == 10000


def test_own_portable_rules_come_before_the_shipped_ones(configs: Path, shipped: Path) -> None:
    write_configs(shipped, "portable", *usual_entries(32, 64, measured=False, BLOCK_M=32))
    content = emit(request(configs, head_dims=(32, 64))).content
    tiles = {(row.spec.head_dim, row.config.BLOCK_M) for row in content.portable}
    assert tiles == {(32, 32), (64, 64)}


def test_portable_rules_must_reach_any_length(configs: Path) -> None:
    write_configs(configs, "portable", *usual_entries(64, 128, keys=(1, 4096)))
    with pytest.raises(TunedConfigError, match=r"any number of keys of forward-bf16-d64-full, .*\.\.\."):
        emit(request(configs))


def test_no_portable_rules_at_all(tmp_path: Path) -> None:
    write_configs(tmp_path, "nvidia-h200", *usual_entries(64))
    with pytest.raises(TunedConfigError, match=f"next: flashgen tune --gpu portable --out {tmp_path}"):
        emit(request(tmp_path))


def test_nothing_to_serve(configs: Path) -> None:
    write_configs(configs, "nvidia-h200")
    with pytest.raises(TunedConfigError, match="there is nothing to emit"):
        emit(request(configs))


def test_a_file_in_another_gpus_place(configs: Path) -> None:
    (configs / "nvidia-b200").mkdir()
    (configs / "nvidia-h200" / "forward.yaml").rename(configs / "nvidia-b200" / "forward.yaml")
    with pytest.raises(TunedConfigError, match="found nvidia-h200; this place is for nvidia-b200"):
        emit(request(configs, "nvidia-b200"))


def test_equal_configs_give_equal_bytes_wherever_they_lie(configs: Path, tmp_path: Path) -> None:
    other = usual_configs(tmp_path / "a copy")
    assert emit(request(configs)).text == emit(request(other)).text


def test_gaps_are_noted(configs: Path) -> None:
    write_configs(configs, "nvidia-h200", entry_of(BF16, keys=(1, 4096)))
    (note,) = emit(request(configs)).notes
    assert "forward-bf16-d64-causal (bf16/fp16)" in note
    assert "forward-bf16-d64-full" in note


def test_lines_about_every_known_gpu_fit(configs: Path) -> None:
    for slug in KNOWN:
        write_configs(configs, slug, *usual_entries(64))
    content = emit(request(configs, *KNOWN)).content
    lines = [f'    (r"{table.pattern}", {table.name}),' for table in content.gpus]
    lines += [f"# {table.comment}" for table in content.gpus]
    assert len(content.gpus) == len(KNOWN)
    assert [line for line in (*lines, *content.facts) if len(line) > 120] == []


@pytest.fixture
def module(configs: Path) -> ModuleType:
    write_configs(
        configs,
        "nvidia-h200",
        entry_of(BF16, keys=(1, 512), BLOCK_M=32),
        entry_of(BF16, keys=(513, 2048), BLOCK_M=128),
        entry_of(replace(FP16), keys=(1, 1024), BLOCK_M=256, num_warps=8),
    )
    return load_source(emit(request(configs, head_dims=(64,))).text, "emitted")


@pytest.mark.parametrize(
    ("dtype", "seqlen_k", "block_m"),
    [
        ("bfloat16", 1, 32),
        ("bfloat16", 512, 32),
        ("bfloat16", 513, 128),
        ("bfloat16", 2048, 128),
        ("bfloat16", 2049, 64),
        ("float16", 512, 256),
        ("float16", 1025, 128),
        ("float16", 9999, 64),
    ],
)
def test_the_emitted_module_picks_the_rule_of_the_length(
    dtype: str, seqlen_k: int, block_m: int, module: ModuleType
) -> None:
    import torch

    q, k = (
        torch.empty(1, 1, 4, 64, dtype=getattr(torch, dtype)),
        torch.empty(1, 1, seqlen_k, 64, dtype=getattr(torch, dtype)),
    )
    rows = module._select(q, k, k, q, "causal").config.BLOCK_M
    assert rows == block_m


def test_header_of_mixed_evidence(configs: Path) -> None:
    write_configs(configs, "nvidia-h200", *usual_entries(64)[:3], *usual_entries(128, measured=False))
    text = emit(request(configs)).text
    assert re.search(r"^Tuned for +NVIDIA H200 \(nvidia-h200, sm_90\): 7 rules, 3 measured, 4 predicted$", text, re.M)
    assert "# For NVIDIA H200 (nvidia-h200, sm_90): 3 measured, 4 predicted." in text
