"""What the files of a run say."""

from __future__ import annotations

import json

from flashgen.bench.suites import suite
from flashgen.bench.table import as_json, as_markdown, medians, summary
from tests.bench.small import FACTS, result


def test_the_table_marks_the_best_gives_ratios_and_says_who_was_not_timed() -> None:
    text = as_markdown([result(100.0, 150.0)], FACTS)
    flops = 4 * 16 * 32 * 1024 * 1024 * 64
    assert f"| **{flops / 100e-6 / 1e12:.0f}** |" in text
    assert "| 1.50 | - |" in text
    assert text.count("No module named 'absent'") == 1
    assert "flashgen bench module.py" in text


def test_forward_and_backward_rows_share_a_table_with_a_column_for_the_pass() -> None:
    backward = result(200.0, 100.0, suite("anchors", "backward")[0])
    lines = as_markdown([result(), backward], FACTS).splitlines()
    head = next(line for line in lines if line.startswith("| pass "))
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith(("| forw", "| back"))]
    assert [cells[0] for cells in rows] == ["forward", "backward"]
    assert {len(cells) for cells in rows} == {head.count("|") - 1}
    assert rows[1][6:8] == [
        f"{backward.row.flops / 200e-6 / 1e12:.0f}",
        f"**{backward.row.flops / 100e-6 / 1e12:.0f}**",
    ]
    assert rows[1][9:] == ["0.50", "-"]


def test_every_sample_is_kept_with_what_it_takes_to_make_rates_of_them() -> None:
    document = json.loads(as_json([result(of=suite("anchors", "backward")[3])], FACTS))
    (row,) = document["rows"]
    assert row["timed"][0]["rounds"] == [[100.0, 102.0, 98.0], [100.0, 100.0, 100.0]]
    assert (row["pass"], row["spec"]) == ("backward", "backward-bf16-d64-causal")
    assert row["flops"] == 2.5 * 2 * 4 * 32 * 4096 * 4096 * 64
    assert document["facts"] == FACTS


def test_medians_and_the_summary_leave_out_who_was_not_timed() -> None:
    short = medians(result())
    assert short["median_us"] == {"flashgen": 100.0, "peer": 150.0}
    assert list(short["not_timed"]) == ["absent"]
    assert summary(result()).endswith("absent - TFLOP/s")
