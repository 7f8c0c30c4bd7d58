"""The paper's row beside our figures."""

from __future__ import annotations

from dataclasses import replace

from flashgen.bench.counters import Counted
from flashgen.bench.paper import HEAD, as_markdown, cells
from flashgen.bench.run import RowResult, Timed
from flashgen.bench.suites import suite
from tests.bench.small import FACTS

PLAIN, DROPPED = suite("paper")
TIMED = (
    Timed(contender="flashgen", rounds=((2500.0,),)),
    Timed(contender="standard", rounds=((10000.0,),)),
    Timed(contender="FA4", missing="ModuleNotFoundError: No module named 'flash_attn'"),
)
COUNTED = (
    Counted(contender="flashgen", bytes_read=10**9, bytes_written=10**9, kernels=4),
    Counted(contender="standard", bytes_read=15 * 10**9, bytes_written=9 * 10**9, kernels=12),
)
RESULT = RowResult(row=PLAIN, timed=TIMED, counted=COUNTED)


def test_time_bytes_and_standards_ratios_stand_beside_the_papers() -> None:
    rows = {row[0]: dict(zip(HEAD[1:], row[1:])) for row in cells(RESULT)}
    matmul = 2 * 64 * 64 * 16 * 1024 * 1024 / 1e9
    assert rows["flashgen"] == {
        "ms": "2.5",
        "GFLOP": f"{7 * matmul:.0f}",
        "HBM GB": "2",
        "kernels": "4",
        "standard's time / its": "4.0",
        "standard's bytes / its": "12.0",
    }
    assert rows["standard"]["GFLOP"] == f"{6 * matmul:.0f}"
    assert rows["FA4"]["ms"] == rows["FA4"]["HBM GB"] == rows["FA4"]["standard's time / its"] == "-"
    theirs = rows["FlashAttention (the paper, A100)"]
    assert (theirs["ms"], theirs["GFLOP"], theirs["HBM GB"]) == ("7.3", "75.2", "4.4")
    assert (theirs["standard's time / its"], theirs["standard's bytes / its"]) == ("5.7", "9.2")


def test_without_counters_times_are_there_and_the_reason_is_told_once() -> None:
    why = "ERR_NVGPUCTRPERM - The user does not have permission"
    refused = tuple(Counted(contender=each.contender, missing=why) for each in COUNTED)
    text = as_markdown([replace(RESULT, counted=refused), replace(RESULT, row=DROPPED, counted=refused)], FACTS)
    assert "## forward+backward, fp16, batch 64, 16 heads, seqlen 1024, head_dim 64, no dropout" in text
    assert "head_dim 64, dropout 0.1" in text
    assert "| flashgen | 2.5 | 962 | - | - | 4.0 | - |" in text
    assert text.count(f"- standard: {why}") == 1
    assert text.count("No module named 'flash_attn'") == 1
    assert "flashgen bench module.py" in text


def test_without_standard_attention_there_is_no_ratio() -> None:
    failed = Timed(contender="standard", missing="OutOfMemoryError: CUDA out of memory")
    (flashgen, *_) = cells(replace(RESULT, timed=(TIMED[0], failed), counted=COUNTED[:1]))
    assert flashgen[1:] == ["2.5", "962", "2", "4", "-", "-"]
