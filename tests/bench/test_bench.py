"""The suites and the table; the timing itself needs a GPU."""

from __future__ import annotations

import json

import pytest

from flashgen.bench.run import RowResult, Timed
from flashgen.bench.suites import suite
from flashgen.bench.table import as_json, as_markdown
from flashgen.errors import SpecError

FACTS = {"GPU": "some GPU", "command": "flashgen bench module.py"}


def _result(us: float, peer_us: float) -> RowResult:
    timed = (
        Timed(contender="flashgen", rounds=((us, us + 2, us - 2), (us, us, us))),
        Timed(contender="peer", rounds=((peer_us,), (peer_us,))),
        Timed(contender="absent", missing="ModuleNotFoundError: No module named 'absent'"),
    )
    return RowResult(row=suite("anchors")[0], timed=timed)


def test_anchors_are_twenty_forward_rows_of_equal_tokens_but_one() -> None:
    rows = suite("anchors")
    assert len(rows) == 20
    assert {row.spec.head_dim for row in rows} == {64, 128, 256}
    assert {row.workload.batch * row.workload.seqlen_q for row in rows} == {16384}
    grouped = [row for row in rows if row.workload.heads_q != row.workload.heads_kv]
    assert [(row.workload.heads_q, row.workload.heads_kv) for row in grouped] == [(32, 8), (32, 8)]


def test_an_unknown_suite_names_the_known_ones() -> None:
    with pytest.raises(SpecError, match="anchors"):
        suite("anchor")


def test_the_table_marks_the_best_gives_ratios_and_says_who_was_not_timed() -> None:
    text = as_markdown([_result(100.0, 150.0)], FACTS)
    flops = 4 * 16 * 32 * 1024 * 1024 * 64
    assert f"**{flops / 100e-6 / 1e12:.0f}**" in text
    assert "| 1.50 | - |" in text
    assert "No module named 'absent'" in text
    assert "flashgen bench module.py" in text


def test_every_sample_is_kept() -> None:
    document = json.loads(as_json([_result(100.0, 150.0)], FACTS))
    assert document["rows"][0]["timed"][0]["rounds"] == [[100.0, 102.0, 98.0], [100.0, 100.0, 100.0]]
    assert document["facts"] == FACTS
