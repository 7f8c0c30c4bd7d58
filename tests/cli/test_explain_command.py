"""`flashgen explain`, and the ways to give it a config."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import pytest

from flashgen.cli.config_argument import parse_config
from flashgen.compiler import explanation
from flashgen.errors import SpecError
from flashgen.families import TlConfig
from flashgen.outcome import Reason, Rejected, Resources
from tests.cli.conftest import Cli

PASSES = (
    "BLOCK_M=64,BLOCK_N=128,num_warps=8,num_stages=2,BLOCK_M_DQ=128,BLOCK_N_DQ=32,num_warps_dq=8,num_stages_dq=3,tma=1"
)
KNOBS = "BLOCK_M=128,BLOCK_N=64,num_warps=8,num_stages=2"
NEEDS = Resources(shared_bytes=99328, registers=200, spill_bytes=0, num_warps=8)


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A compiler that gives the one answer in the list."""
    answers: list[Any] = [NEEDS]

    def compile_many(pairs: Sequence[Any], target: Any, jobs: int) -> Iterator[tuple[int, Any]]:
        yield 0, answers[0]

    monkeypatch.setattr(explanation, "compile_many", compile_many)
    return answers


def test_terms_add_up(cli: Cli, compiler: list[Any], shipped: Path) -> None:
    document = cli("explain", "--gpu", "h200", "--config", f"{KNOBS},tma=1", "--json").document
    assert {tile["name"]: tile["total_bytes"] for tile in document["tiles"]} == {"Q": 32768, "K": 32768, "V": 32768}
    assert document["bound_bytes"] == 98304
    assert document["limit_bytes"] == 232448
    assert document["resources"]["shared_bytes"] == 99328
    assert document["blocks_per_sm"] == 1
    assert document["flops"] == 4 * 4 * 16 * 128 * 4096 * 4096 / 2
    assert document["prediction"]["us"] > document["hbm_floor_us"]


def test_text(cli: Cli, compiler: list[Any], shipped: Path) -> None:
    done = cli("explain", "--gpu", "h200", "--config", KNOBS)
    assert done.code == 0
    assert "99328 bytes of shared memory (+1024 against the bound), 200 registers a thread" in done.out
    assert "limit: 232448 bytes a block" in done.out
    assert "us, bound by" in done.out


def test_the_backward_is_explained_pass_by_pass(cli: Cli, compiler: list[Any], shipped: Path) -> None:
    given = ("explain", "--gpu", "h200", "--op", "backward", "--config", PASSES)
    document = cli(*given, "--json").document
    assert (document["op"], document["config"]["family"]) == ("backward", "tl_backward")
    assert {tile["name"]: tile["total_bytes"] for tile in document["tiles"]} == {"K and V": 65536, "Q and dO": 65536}
    assert list(document["step_cycles"]) == ["dK, dV", "dQ"]
    assert document["step_cycles"]["dK, dV"]["mma"] == pytest.approx(
        document["step_cycles"]["dQ"]["mma"] * (4 * 64) / (3 * 32)
    )
    assert document["flops"] == 2.5 * 4 * 4 * 16 * 128 * 4096 * 4096 / 2
    text = cli(*given).out
    assert "Shared memory of the larger pass, at least" in text
    assert "a tile step of dK, dV: mma" in text
    assert "a tile step of dQ: softmax" in text


def test_the_tuned_backward_rule_is_the_default(cli: Cli, compiler: list[Any], configs: Path) -> None:
    given = ("explain", "--gpu", "h200", "--op", "backward", "--configs", configs, "--json")
    assert cli(*given).document["config"]["BLOCK_M_DQ"] == 64


def test_a_config_of_the_other_pass_is_refused(cli: Cli, compiler: list[Any], shipped: Path) -> None:
    for op, config, other in (("backward", f"tl:{KNOBS}", "forward"), ("forward", f"tl_backward:{PASSES}", "backward")):
        done = cli("explain", "--gpu", "h200", "--op", op, "--config", config)
        assert done.code == 2
        assert f"is a config of op {other}, not {op}: give --op {other}" in done.err


@pytest.mark.parametrize(
    "answer",
    [
        Rejected(reason=Reason.COMPILE, detail="PassManager::run failed"),
        Resources(shared_bytes=300000, registers=255, spill_bytes=0, num_warps=8),
    ],
)
def test_what_cannot_run_exits_4(answer: Any, cli: Cli, compiler: list[Any], shipped: Path) -> None:
    compiler[0] = answer
    done = cli("explain", "--gpu", "h200", "--config", KNOBS)
    assert done.code == 4
    assert "PassManager::run failed" in done.out or "needs 300000 bytes" in done.out


def test_what_is_certain_is_not_compiled(cli: Cli, compiler: list[Any], shipped: Path) -> None:
    compiler.clear()
    big = cli("explain", "--gpu", "l4", "--config", "BLOCK_M=128,BLOCK_N=128,num_warps=8,num_stages=4")
    assert (big.code, "needs at least 196608 bytes" in big.out) == (4, True)
    tma = cli("explain", "--gpu", "a100", "--config", f"{KNOBS},tma=true")
    assert (tma.code, "tma needs sm_90" in tma.out) == (4, True)


def test_the_tuned_rule_is_the_default(cli: Cli, compiler: list[Any], configs: Path) -> None:
    document = cli("explain", "--gpu", "h200", "--configs", configs, "--json").document
    assert (document["config"]["BLOCK_M"], document["config"]["BLOCK_N"]) == (128, 32)


def test_a_file_of_rules_or_of_one_config(cli: Cli, compiler: list[Any], configs: Path, tmp_path: Path) -> None:
    rules = configs / "nvidia-h200" / "forward.yaml"
    assert cli("explain", "--gpu", "h200", "--config", rules, "--json").document["config"]["BLOCK_N"] == 32
    missing = cli("explain", "--gpu", "h200", "--config", rules, "--head-dim", 96)
    assert (missing.code, "has no rule for forward-bf16-d96-causal" in missing.err) == (2, True)
    one = tmp_path / "one.yaml"
    one.write_text("family: tl\nBLOCK_M: 64\nBLOCK_N: 16\nnum_warps: 4\nnum_stages: 1\n")
    assert cli("explain", "--gpu", "h200", "--config", one, "--json").document["config"]["BLOCK_N"] == 16


def test_a_config_reads_back_from_its_key() -> None:
    config = TlConfig(BLOCK_M=128, BLOCK_N=64, num_warps=8, num_stages=3, tma=True, heads_per_group=8, maxnreg=128)
    assert parse_config(config.key) == config
    assert parse_config(PASSES, "backward") == parse_config(f"tl_backward:{PASSES}")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nothing", "is no KNOB=VALUE, and no file"),
        ("wgmma:BLOCK_M=64", "family 'wgmma' is not one of tl, "),
        ("BLOCK_M=64", "lacks BLOCK_N, num_warps, num_stages"),
        (f"{KNOBS},tma=3", "tma=3 is not 0 or 1"),
        (f"{KNOBS},maxnreg=many", "maxnreg=many is not a number"),
    ],
)
def test_texts_that_are_no_config(text: str, words: str) -> None:
    with pytest.raises(click.BadParameter, match=words):
        parse_config(text)


def test_knobs_that_the_family_refuses() -> None:
    with pytest.raises(SpecError, match="no knob 'BLOCK_X'"):
        parse_config(f"{KNOBS},BLOCK_X=1")
    with pytest.raises(SpecError, match="BLOCK_M 48"):
        parse_config("BLOCK_M=48,BLOCK_N=64,num_warps=8,num_stages=2")
