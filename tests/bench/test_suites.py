"""The rows that are timed, and which of them a user can ask for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flashgen.bench.suites import suite
from flashgen.errors import SpecError


def test_anchors_are_twenty_rows_of_equal_tokens_forward_and_the_same_backward() -> None:
    forward, backward = suite("anchors", "forward"), suite("anchors", "backward")
    assert suite("anchors") == forward + backward
    assert len(forward) == 20
    assert [replace(row.spec, op="backward") for row in forward] == [row.spec for row in backward]
    assert [row.workload for row in forward] == [row.workload for row in backward]
    assert {row.spec.head_dim for row in forward} == {64, 128, 256}
    assert {row.workload.batch * row.workload.seqlen_q for row in forward} == {16384}
    grouped = [row.workload for row in forward if row.workload.heads_q != row.workload.heads_kv]
    assert [(sizes.heads_q, sizes.heads_kv) for sizes in grouped] == [(32, 8), (32, 8)]


def test_a_backward_anchor_counts_two_and_a_half_forwards() -> None:
    forward, backward = suite("anchors", "forward")[0], suite("anchors", "backward")[0]
    assert forward.flops == 4 * 16 * 32 * 1024 * 1024 * 64
    assert backward.flops == 2.5 * forward.flops
    assert backward.key == "backward-bf16-d64-full b16-h32-q1024-k1024"


def test_the_papers_row_is_gpt2_forward_and_backward_without_and_with_dropout() -> None:
    plain, dropped = suite("paper")
    assert plain.key == "forward+backward-fp16-d64-full b64-h16-q1024-k1024"
    assert dropped.key == "forward+backward-fp16-d64-full-dropout b64-h16-q1024-k1024"
    assert (plain.dropout_p, dropped.dropout_p) == (0.0, 0.1)
    assert plain.flops == 7 * 2 * 64 * 64 * 16 * 1024 * 1024


def test_rows_in_fp8_are_the_forward_anchors() -> None:
    rows, anchors = suite("fp8"), suite("anchors", "forward")
    assert [replace(row.spec, dtype="bf16") for row in rows] == [row.spec for row in anchors]
    assert [(row.workload, row.flops) for row in rows] == [(row.workload, row.flops) for row in anchors]
    assert rows[0].key == "forward-fp8-d64-full b16-h32-q1024-k1024"


def test_keys_are_unique_in_each_suite() -> None:
    for name in ("anchors", "paper", "fp8"):
        keys = [row.key for row in suite(name)]
        assert len(set(keys)) == len(keys)


def test_head_dims_filter_rows() -> None:
    assert {row.spec.head_dim for row in suite("anchors", "backward", (64, 256))} == {64, 256}
    assert len(suite("anchors", head_dims=(64,))) == 12


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (("anchor",), "suite 'anchor' is not one of anchors, paper, fp8"),
        (
            ("anchors", "all", (96,)),
            "--op all --head-dim 96 leaves no row of suite anchors, .* at head_dim 64, 128, 256",
        ),
        (("paper", "forward"), r"--op forward leaves no row of suite paper, which has forward\+backward"),
    ],
)
def test_what_leaves_no_row_says_what_there_is(asked: tuple[str, ...], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        suite(*asked)  # type: ignore[arg-type]
