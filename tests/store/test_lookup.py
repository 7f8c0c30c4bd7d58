"""Which rule answers for a case, what becomes of two files of rules, and how two files differ."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise, product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashgen.errors import TunedConfigError
from flashgen.families import GluonSm90BackwardConfig
from flashgen.spec import AttentionSpec, Workload
from flashgen.store.entry import TunedEntry, TunedFile
from flashgen.store.lookup import diff, find_entry, merge, staleness

MakeEntry = Callable[..., TunedEntry]
MakeFile = Callable[..., TunedFile]
MakeSpec = Callable[..., AttentionSpec]


def workload(seqlen_k: int) -> Workload:
    return Workload(batch=1, heads_q=1, heads_kv=1, seqlen_q=1, seqlen_k=seqlen_k)


def test_a_rule_serves_its_dtypes_and_no_other(make_spec: MakeSpec, make_entry: MakeEntry, make_file: MakeFile) -> None:
    file = make_file(make_entry())
    assert find_entry(file, make_spec()) == file.entries[0]
    assert find_entry(file, make_spec(dtype="fp16")) == file.entries[0]
    assert find_entry(file, make_spec(dtype="fp32")) is None


def test_fp32_has_a_rule_of_its_own(make_spec: MakeSpec, make_entry: MakeEntry, make_file: MakeFile) -> None:
    file = make_file(make_entry(block_m=128), make_entry(block_m=64, dtype="fp32"))
    found = [find_entry(file, make_spec(dtype=dtype)) for dtype in ("bf16", "fp16", "fp32")]
    assert [entry.config.BLOCK_M for entry in found if entry] == [128, 128, 64]


def test_a_rule_measured_in_the_dtype_comes_first(
    make_spec: MakeSpec, make_entry: MakeEntry, make_file: MakeFile
) -> None:
    apart = make_entry(dtype="fp16", high=512, block_m=64)
    file = make_file(make_entry(), apart)
    assert find_entry(file, make_spec(dtype="fp16")) == apart
    assert find_entry(file, make_spec(dtype="fp16"), workload(512)) == apart
    beyond = find_entry(file, make_spec(dtype="fp16"), workload(513))
    assert beyond is not None
    assert beyond.spec.dtype == "bf16"


def test_the_workload_picks_the_range(make_spec: MakeSpec, make_entry: MakeEntry, make_file: MakeFile) -> None:
    file = make_file(make_entry(low=16, high=1024, block_m=64), make_entry(low=1025, block_m=128))
    found = {n: find_entry(file, make_spec(), workload(n)) for n in (15, 16, 1024, 1025)}
    assert {n: entry and entry.config.BLOCK_M for n, entry in found.items()} == {15: None, 16: 64, 1024: 64, 1025: 128}
    longest = find_entry(file, make_spec())
    assert longest is not None
    assert longest.config.BLOCK_M == 128


@pytest.mark.parametrize(
    ("asked", "held", "stands_in"),
    [
        ({"softcap": True}, {}, True),
        ({"causal": False, "window": True}, {}, True),
        ({"causal": False, "window": True, "softcap": True}, {}, True),
        ({"causal": False, "window": True, "softcap": True}, {"softcap": True}, True),
        ({"causal": False, "window": True, "softcap": True}, {"causal": False, "window": True}, True),
        ({"alibi": True, "dropout": True}, {"alibi": True}, True),
        ({"alibi": True, "dropout": True}, {}, True),
        ({"alibi": True, "dropout": True}, {"dropout": True}, False),
        ({}, {"softcap": True}, False),
        ({}, {"dropout": True}, False),
        ({}, {"causal": False}, False),
        ({"causal": False}, {}, False),
        ({"causal": False, "window": True}, {"causal": False}, False),
        ({"head_dim": 64}, {}, False),
        ({"head_dim_v": 64}, {}, False),
    ],
)
def test_what_stands_in_for_what(
    make_spec: MakeSpec,
    make_entry: MakeEntry,
    make_file: MakeFile,
    asked: dict[str, Any],
    held: dict[str, Any],
    stands_in: bool,
) -> None:
    file = make_file(make_entry(**held))
    assert (find_entry(file, make_spec(**asked)) == file.entries[0]) is stands_in


def test_the_closest_stand_in_is_taken(make_spec: MakeSpec, make_entry: MakeEntry, make_file: MakeFile) -> None:
    asked = make_spec(causal=False, window=True, softcap=True)
    closest_first = [
        make_entry(causal=False, window=True, softcap=True),
        make_entry(causal=False, window=True),
        make_entry(softcap=True),
        make_entry(),
    ]
    for n in range(4):
        assert find_entry(make_file(*closest_first[n:]), asked) == closest_first[n]


def test_a_stand_in_has_the_first_features(make_spec: MakeSpec, make_entry: MakeEntry, make_file: MakeFile) -> None:
    """A cap changes the time of a tile, dropout hardly does: what comes last in a variant is given up first."""
    asked = make_spec(causal=False, window=True, softcap=True, dropout=True)
    held = [
        make_entry(causal=False, window=True, softcap=True),
        make_entry(causal=False, window=True),
        make_entry(softcap=True, dropout=True),
    ]
    for n in range(3):
        assert find_entry(make_file(*held[n:]), asked) == held[n]


def test_new_rules_replace_old_ones_of_the_same_case(make_entry: MakeEntry, make_file: MakeFile) -> None:
    other = make_entry(head_dim=64)
    merged = merge(make_file(make_entry(block_m=128), other), make_file(make_entry(block_m=64)))
    assert merged == make_file(make_entry(block_m=64), other)


def test_a_prediction_replaces_a_measurement_only_when_asked(make_entry: MakeEntry, make_file: MakeFile) -> None:
    measured, predicted = make_file(make_entry(block_m=128)), make_file(make_entry(kind="predicted", block_m=64))
    assert merge(measured, predicted) == measured
    assert merge(measured, predicted, predicted_over_measured=True) == predicted
    assert merge(predicted, measured) == measured
    assert merge(predicted, predicted) == predicted


def test_overlapping_rules_keep_what_the_other_does_not_cover(make_entry: MakeEntry, make_file: MakeFile) -> None:
    merged = merge(make_file(make_entry(block_m=128)), make_file(make_entry(block_m=64, low=512, high=1024)))
    assert [(str(e.workloads), e.config.BLOCK_M) for e in merged.entries] == [
        ("seqlen_k 1..511", 128),
        ("seqlen_k 512..1024", 64),
        ("seqlen_k 1025..", 128),
    ]
    short = make_file(make_entry(block_m=128, high=1024))
    merged = merge(short, make_file(make_entry(kind="predicted", block_m=64)))
    assert [(str(e.workloads), e.config.BLOCK_M) for e in merged.entries] == [
        ("seqlen_k 1..1024", 128),
        ("seqlen_k 1025..", 64),
    ]


def test_an_unordered_rule_leaves_the_ordered_one_beside_it(make_entry: MakeEntry, make_file: MakeFile) -> None:
    def unordered(stages: int) -> TunedEntry:
        config = GluonSm90BackwardConfig(BLOCK_M=64, BLOCK_N=128, num_stages=stages)
        return replace(make_entry(op="backward"), config=config)

    ordered = make_entry(op="backward")
    both = make_file(unordered(2), ordered, op="backward")
    assert merge(make_file(ordered, op="backward"), make_file(unordered(2), op="backward")) == both
    assert merge(both, make_file(unordered(1), op="backward")).entries == (unordered(1), ordered)
    fastest = make_file(ordered, op="backward")
    assert merge(both, fastest) == fastest


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_merging_loses_no_coverage_and_never_clashes(
    data: st.DataObject, make_entry: MakeEntry, make_file: MakeFile
) -> None:
    def draw_file(block_m: int) -> TunedFile:
        cuts = sorted(data.draw(st.sets(st.integers(1, 12), min_size=2, max_size=4)))
        kinds = st.sampled_from(["measured", "predicted"])
        pieces = pairwise(cuts)
        return make_file(*(make_entry(low=a, high=b - 1, kind=data.draw(kinds), block_m=block_m) for a, b in pieces))

    old, new, forced = draw_file(128), draw_file(64), data.draw(st.booleans())
    merged = merge(old, new, predicted_over_measured=forced)
    spec = old.entries[0].spec
    for n in range(1, 13):
        a, b, found = (find_entry(file, spec, workload(n)) for file in (old, new, merged))
        if a is None or b is None:
            expected = a or b
        else:
            stays = (a.evidence.kind, b.evidence.kind) == ("measured", "predicted") and not forced
            expected = a if stays else b
        assert (found and found.config.BLOCK_M) == (expected and expected.config.BLOCK_M)


def test_merging_keeps_the_commands_that_the_rules_came_from(make_entry: MakeEntry, make_file: MakeFile) -> None:
    first = make_file(make_entry(), command="tune a")
    second = make_file(make_entry(head_dim=64), command="tune b")
    both = merge(first, second)
    assert both.command == "tune a && tune b"
    assert merge(both, first).command == "tune b && tune a"
    assert merge(first, replace(first, command="tune c")).command == "tune c"
    assert merge(both, both) == both


def test_files_of_two_gpus_do_not_merge(make_entry: MakeEntry, make_file: MakeFile) -> None:
    with pytest.raises(
        TunedConfigError, match="cannot merge forward rules of nvidia-h100 into forward rules of nvidia-h200"
    ):
        merge(make_file(make_entry()), make_file(make_entry(), gpu="nvidia-h100"))


def test_diff_is_empty_only_for_equal_files(make_entry: MakeEntry, make_file: MakeFile) -> None:
    file = make_file(make_entry(), make_entry(head_dim=64))
    assert diff(file, file) == ()
    entry = file.entries[0]
    for part, field in product(("proof", "toolchain", "resources", "evidence"), (0, 1)):
        record = getattr(entry, part)
        name = {
            "proof": ("seed", "probes"),
            "toolchain": ("triton", "torch"),
            "resources": ("registers", "shared_bytes"),
        }
        changed = name.get(part, ("ties", "candidates"))[field]
        value = "4.0" if part == "toolchain" else 200
        other = make_file(replace(entry, **{part: replace(record, **{changed: value})}), *file.entries[1:])
        (line,) = diff(file, other)
        assert line == f"~ {entry.label}: {part}.{changed}: {getattr(record, changed)} -> {value}"


def test_diff_says_what_is_gone_new_and_changed(make_entry: MakeEntry, make_file: MakeFile) -> None:
    a = make_file(make_entry(), make_entry(head_dim=64), command="tune a")
    b = make_file(make_entry(block_m=64, kind="predicted"), make_entry(head_dim=96, high=9), command="tune b")
    lines = diff(a, b)
    assert lines[0] == "~ command: tune a -> tune b"
    assert lines[1].startswith("- forward-bf16-d64v128-causal seqlen_k 1..: tl:BLOCK_M=128,BLOCK_N=64,")
    assert "~ forward-bf16-d128-causal seqlen_k 1..: config.BLOCK_M: 128 -> 64" in lines
    assert "~ forward-bf16-d128-causal seqlen_k 1..: evidence.kind: measured -> predicted" in lines
    assert "~ forward-bf16-d128-causal seqlen_k 1..: timings[0].bound: absent -> mma" in lines
    assert lines[-1].startswith("+ forward-bf16-d96v128-causal seqlen_k 1..9: tl:BLOCK_M=128,")


def test_rules_made_with_other_tools_are_stale(make_entry: MakeEntry, make_file: MakeFile) -> None:
    entry = make_entry()
    file = make_file(entry)
    assert staleness(file, lambda each: each.toolchain) == ()
    other = replace(entry.toolchain, triton="3.11", kernels="0abc")
    assert staleness(file, lambda each: other) == (
        "forward-bf16-d128-causal seqlen_k 1..: triton: 3.10 -> 3.11",
        "forward-bf16-d128-causal seqlen_k 1..: kernels: 1E6 -> 0abc",
    )
