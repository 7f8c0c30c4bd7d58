"""Which rules of tuned configs an emitted module holds, and which of them a call gets."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from flashgen.assets import tuned_configs_dir
from flashgen.codegen.emit import emit
from flashgen.codegen.feasible import require_fit
from flashgen.codegen.module import Row
from flashgen.codegen.request import EmitRequest
from flashgen.codegen.rules import Case, cases_of, rule_sets
from flashgen.compiler.load import load_source
from flashgen.errors import NoFeasibleConfig, SpecError, TunedConfigError
from flashgen.families import GluonSm90BackwardConfig
from flashgen.hardware.known import KNOWN
from flashgen.store.directory import read_directory
from flashgen.store.entry import TunedEntry, WorkloadRange
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


def request(configs: Path, *gpus: str, op: str = "forward", **changes: object) -> EmitRequest:
    return EmitRequest(gpus=gpus or ("nvidia-h200",), configs=configs, op=op, **changes)  # type: ignore[arg-type]


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


def test_a_portable_rule_that_some_gpu_cannot_hold_is_refused(configs: Path) -> None:
    write_configs(configs, "portable", *usual_entries(64), *usual_entries(128, shared_bytes=65537))
    with pytest.raises(NoFeasibleConfig) as caught:
        emit(request(configs))
    rule, following = str(caught.value).splitlines()
    assert rule.startswith("the portable rule forward-bf16-d128-full seqlen_k 1.. (tl:BLOCK_M=64,BLOCK_N=32,")
    assert rule.endswith("does not fit: it needs 65537 bytes of shared memory, amd-instinct-mi300x has 65536")
    command = "flashgen tune --gpu portable --op forward --head-dim 128 --dtype bf16 --dtype fp16"
    assert following == f"  next: {command} --out {configs}"
    assert caught.value.exit_code == 4
    assert emit(request(configs, head_dims=(64,))).text  # a rule that is not emitted may be as it is


def test_a_config_that_was_changed_since_it_was_compiled_is_refused_by_its_bound(configs: Path) -> None:
    """The file still says 24576 bytes."""
    large = usual_entries(64, 128, shared_bytes=24576, BLOCK_M=128, BLOCK_N=128, num_stages=3, num_warps=8)
    write_configs(configs, "portable", *large)
    needs = r"d128-full .* needs at least \d+ bytes of shared memory \(.*\); amd-instinct-mi300x offers 65536"
    with pytest.raises(NoFeasibleConfig, match=needs):
        emit(request(configs, head_dims=(128,)))


def test_a_tuned_rule_must_fit_its_own_gpu(configs: Path) -> None:
    entries = usual_entries(64, shared_bytes=114688)
    write_configs(configs, "nvidia-a10", *entries)
    with pytest.raises(NoFeasibleConfig, match=r"the nvidia-a10 rule .* 114688 bytes .* nvidia-a10 has 101376"):
        emit(request(configs, "nvidia-a10"))
    write_configs(configs, "nvidia-h100", *entries)
    assert emit(request(configs, "nvidia-h100")).content.portable_shared_bytes == 24576


def test_all_that_flashgen_ships_fits_what_it_is_for() -> None:
    files = read_directory(tuned_configs_dir())
    assert files
    for path, file in files.items():
        require_fit(file.entries, file.gpu, path.parent.parent)


@pytest.mark.case("tuner-07")
def test_a_rule_of_small_heads_is_never_used_for_large_ones(configs: Path) -> None:
    import torch

    module = load_source(emit(request(configs, head_dims=(64,))).text, "emitted")
    q = torch.randn(1, 8, 1, 256, dtype=torch.float16)
    with pytest.raises(ValueError, match=r"head_dim.*256.*64"):
        module.flash_attention(q, q, q, causal=True)
    # Nor does its config get into a module by way of a file: tiles that fit 64 columns do not fit 256 everywhere.
    knobs = {"BLOCK_M": 64, "BLOCK_N": 64, "num_stages": 3}
    write_configs(configs, "portable", *usual_entries(64, 256, shared_bytes=24576, **knobs))
    assert emit(request(configs, head_dims=(64,))).text
    with pytest.raises(NoFeasibleConfig, match=r"d256-full .* needs at least \d+ bytes of shared memory"):
        emit(request(configs, head_dims=(256,)))


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
    command = f"flashgen tune --gpu portable --op forward --head-dim 64 --dtype bf16 --dtype fp16 --out {tmp_path}"
    with pytest.raises(TunedConfigError, match=f"next: {command}$"):
        emit(request(tmp_path))
    with pytest.raises(TunedConfigError, match=f"next: {command.replace(' --op forward', '')}$"):
        emit(request(tmp_path, op="all"))


def test_nothing_to_serve(configs: Path) -> None:
    write_configs(configs, "nvidia-h200")
    with pytest.raises(TunedConfigError, match=r"there is nothing to emit.*\n  next: flashgen tune --gpu h200 --out"):
        emit(request(configs))


def test_a_module_holds_forward_rules_and_then_backward_ones(configs: Path) -> None:
    emission = emit(request(configs, op="all"))
    content = emission.content
    for rows_held in (content.portable, content.gpus[0].rows):
        assert [row.spec.op for row in rows_held] == ["forward"] * 8 + ["backward"] * 8
    assert {(source.file.gpu, source.file.op) for source in emission.sources} == {
        ("nvidia-h200", "forward"),
        ("nvidia-h200", "backward"),
        ("portable", "forward"),
        ("portable", "backward"),
    }
    assert {row.spec.op for row in emit(request(configs)).content.portable} == {"forward"}


def test_a_module_with_gradients_says_so_and_without_them_how_it_was_made(configs: Path) -> None:
    whole, forward = (emit(request(configs, op=op, head_dims=(64,))) for op in ("all", "forward"))
    assert whole.content.command == "flashgen emit --gpu h200 --head-dim 64"
    assert forward.content.command == "flashgen emit --gpu h200 --op forward --head-dim 64"
    facts = " ".join(" ".join(whole.content.facts).split())
    assert "attention forward (out, lse) and backward (dq, dk, dv), in bf16, fp16; head_dim 64;" in facts
    assert "NVIDIA H200 (nvidia-h200, sm_90): 4 forward and 4 backward rules, measured" in facts
    for who in ("nvidia-h200 forward", "nvidia-h200 backward", "portable forward", "portable backward"):
        assert f"{who}: 48 probes a rule of suite quick" in facts
    assert "backward" not in " ".join(forward.content.facts)


def test_shared_bytes_are_those_of_both_passes(configs: Path) -> None:
    write_configs(configs, "portable", *usual_entries(64, 128, op="backward", shared_bytes=50000), op="backward")
    assert emit(request(configs, op="all")).content.portable_shared_bytes == 50000
    assert emit(request(configs)).content.portable_shared_bytes == 24576


def test_a_gpu_without_backward_rules_runs_the_portable_ones(configs: Path) -> None:
    (configs / "nvidia-h200" / "backward.yaml").unlink()
    emission = emit(request(configs, op="all"))
    assert {row.spec.op for row in emission.content.gpus[0].rows} == {"forward"}
    assert {row.spec.op for row in emission.content.portable} == {"forward", "backward"}
    (note,) = emission.notes
    command = f"flashgen tune --gpu h200 --op backward --out {configs}"
    assert note == f"nvidia-h200 has no backward rules: portable ones fill in; to tune for it: {command}"


def test_without_portable_backward_rules_there_are_two_ways_on(configs: Path) -> None:
    (configs / "portable" / "backward.yaml").unlink()
    command = "flashgen tune --gpu portable --op backward --head-dim 64 --head-dim 128 --dtype bf16 --dtype fp16"
    with pytest.raises(TunedConfigError) as caught:
        emit(request(configs, op="all"))
    _, following, other = str(caught.value).splitlines()
    assert following == f"  next: {command} --out {configs}"
    assert "flashgen emit --op forward" in other
    assert emit(request(configs)).text


def test_features_are_served_beside_the_plain_kernels(configs: Path) -> None:
    sets, variants = (("alibi", "dropout"), ("sink",)), ["full", "causal", "window", "window_softcap"]
    for op in ("forward", "backward"):
        featured = [f"{mask}_{features}" for features in ("alibi_dropout", "sink") for mask in variants[:3]]
        entries = usual_entries(64, op=op, variants=[*variants, *featured])  # type: ignore[arg-type]
        write_configs(configs, "portable", *entries, op=op)  # type: ignore[arg-type]
    emission = emit(request(configs, op="all", head_dims=(64,), features=sets))
    assert {row.spec.variant for row in emission.content.portable} == {*variants, *featured}
    assert {row.spec.variant for row in emission.content.gpus[0].rows} == set(variants)
    assert emission.content.command == "flashgen emit --gpu h200 --head-dim 64 --feature alibi+dropout --feature sink"
    assert "sliding window; softcap; alibi with dropout; sink; MHA" in " ".join(
        " ".join(emission.content.facts).split()
    )
    assert any("no rule for any number of keys of forward-bf16-d64-full-alibi-dropout" in n for n in emission.notes)


def test_features_without_portable_rules_name_the_command_that_makes_them(configs: Path) -> None:
    command = "--head-dim 64 --dtype bf16 --dtype fp16 --feature alibi+dropout --out"
    with pytest.raises(TunedConfigError, match=re.escape(f"next: flashgen tune --gpu portable {command}")):
        emit(request(configs, op="all", head_dims=(64,), features=(("alibi", "dropout"),)))


def test_softcap_with_features_needs_the_window_kernels(configs: Path) -> None:
    with pytest.raises(SpecError, match=r"softcap\+sink needs the window kernels too"):
        emit(request(configs, window=False, features=(("softcap", "sink"),)))


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
    short = entry_of(replace(BF16, op="backward"), keys=(1, 512), BLOCK_M=16)
    write_configs(configs, "nvidia-h200", short, op="backward")
    return load_source(emit(request(configs, op="all", head_dims=(64,))).text, "emitted")


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

    q = torch.empty(1, 1, 4, 64, dtype=getattr(torch, dtype))
    k = torch.empty(1, 1, seqlen_k, 64, dtype=q.dtype)
    tile = module._select("forward", "causal", q, k, k, q).config.BLOCK_M
    assert tile == block_m


@pytest.mark.parametrize(("seqlen_k", "block_m"), [(512, 16), (513, 32)])
def test_the_emitted_module_picks_the_backward_rule_of_the_length(
    seqlen_k: int, block_m: int, module: ModuleType
) -> None:
    import torch

    q, k = (torch.empty(1, 1, length, 64, dtype=torch.bfloat16) for length in (4, seqlen_k))
    tile = module._select("backward", "causal", q, k, k, q, q, k, k).config.dkdv.BLOCK_M
    assert tile == block_m


def test_header_of_mixed_evidence(configs: Path) -> None:
    write_configs(configs, "nvidia-h200", *usual_entries(64)[:3], *usual_entries(128, measured=False))
    text = emit(request(configs)).text
    assert re.search(
        r"^Tuned for +NVIDIA H200 \(nvidia-h200, sm_90\): 7 forward rules, 3 measured, 4 predicted$", text, re.M
    )
    assert "# For NVIDIA H200 (nvidia-h200, sm_90): 3 measured, 4 predicted." in text


def test_an_unordered_rule_comes_before_the_one_for_determinism() -> None:
    spec = spec_of("causal", "bf16", 64, op="backward")
    ordered = entry_of(spec)
    config = GluonSm90BackwardConfig(BLOCK_M=128, BLOCK_N=128, num_stages=2)
    short = replace(ordered, config=config, workloads=WorkloadRange(seqlen_k_max=1024))
    entries = [ordered, short, replace(short, workloads=WorkloadRange(seqlen_k_min=1025))]
    made = [row for one in rule_sets(entries, cases_of(entries), ["causal"], "backward") for row in one.rows]
    made.sort(key=lambda row: row.order)
    assert [(row.config.family, row.max_seqlen_k) for row in made] == [
        ("gluon_sm90_backward", 1024),
        ("gluon_sm90_backward", None),
        ("tl_backward", None),
    ]


def test_rules_in_fp8_need_no_portable_ones(configs: Path) -> None:
    held = usual_entries(64, 128, BLOCK_M=128, tma=True, num_warps=8)
    write_configs(configs, "nvidia-h200", *held, *usual_entries(64, dtype="fp8"))
    assert "float8" not in emit(request(configs, op="all")).text  # it is not exact, and nobody asked for it
    both = emit(request(configs, op="all", dtypes=("bf16", "fp16", "fp8")))
    assert "in bf16, fp16, fp8" in both.text
    module = load_source(both.text, "with_fp8")
    assert [str(dtype) for dtype in module.SERVED] == ["torch.bfloat16", "torch.float16", "torch.float8_e4m3fn"]
    assert list(module.SERVED[module.torch.float8_e4m3fn]) == [(64, 64)]
    assert not any(
        rule.op == "backward" and "float8" in str(rule.dtypes) for _, rules in module.TUNED for rule in rules
    )
    alone = emit(request(configs, dtypes=("fp8",), head_dims=(64,)))
    assert alone.content.portable == ()
    assert "attention in e4m3" in alone.text.splitlines()[0]
    assert "exact attention" not in alone.text.splitlines()[0]


def test_a_mask_that_fp8_has_no_rules_for_is_left_out_and_said(configs: Path) -> None:
    held = [entry for entry in usual_entries(64, dtype="fp8") if not entry.spec.window]
    write_configs(configs, "nvidia-h200", *held)
    made = emit(request(configs, dtypes=("fp8",), head_dims=(64,)))
    assert any("forward-fp8-d64-window (fp8)" in note and "such a call raises" in note for note in made.notes)
    assert "of these in fp8: forward; no mask, causal (bottom-right)\n" in made.text
    module = load_source(made.text, "some_masks")
    assert {rule.variant for _, rules in module.TUNED for rule in rules} == {"full", "causal"}
    q = module.torch.empty(1, 8, 2, 64, dtype=module.torch.float8_e4m3fn)
    scoring = module.Scoring(softmax_scale=0.125, left=4, right=0, softcap=0.0)
    with pytest.raises(ValueError, match=r"window is \(4, 0\); this module holds full, causal .*--dtype fp8$"):
        module._check_held(q, q, q, "bshd", True, (4, 0), scoring)


def test_where_only_fp8_is_tuned_it_must_be_asked_for(configs: Path) -> None:
    write_configs(configs, "nvidia-h200", *usual_entries(64, dtype="fp8"))
    with pytest.raises(TunedConfigError, match=r"serves fp8 alone.*\n  next: flashgen emit --gpu h200 --dtype fp8"):
        emit(request(configs))


def test_fp8_that_no_gpu_has_rules_for_is_asked_of_one(configs: Path) -> None:
    with pytest.raises(TunedConfigError, match=r"forward-fp8-d64-full, .*a GPU must have some\n.*--dtype fp8"):
        emit(request(configs, dtypes=("fp8",), head_dims=(64,)))
