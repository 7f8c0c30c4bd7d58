"""`flashgen bench`: what it refuses, and the whole way on a CPU with a clock that makes up its times."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flashgen.bench import contenders, run, suites, table
from flashgen.bench.counters import Counted
from flashgen.hardware import resolve as resolving
from flashgen.hardware.detect import DetectedGpu
from tests.bench.small import FACTS, CallingClock, row
from tests.bench.test_counted import MODULE
from tests.cli.conftest import Cli
from tests.tune.replay import H200


@pytest.fixture
def module(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "module.py"
    path.write_text(MODULE)
    yield path
    sys.modules.pop("flashgen_benched", None)


@pytest.fixture
def gpu(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU that is really the CPU, with small rows and the one peer that runs there."""
    bench = run.bench

    def on_cpu(rows: Any, entered: Any, clock: Any, device: str, rounds: int) -> Any:
        assert device == "cuda:0"
        return bench(rows, entered, clock, "cpu", rounds)

    device = DetectedGpu(index=0, name="NVIDIA H200", uuid=None, known=H200.slug, target=H200)
    monkeypatch.setattr(resolving, "detect_gpus", lambda: (device,))
    monkeypatch.setattr(resolving, "interpreter_is_forced", lambda: False)
    monkeypatch.setattr("flashgen.tune.cuda_clock.CudaClock", lambda index, l2_bytes: CallingClock())
    monkeypatch.setattr(run, "bench", on_cpu)
    monkeypatch.setattr(table, "facts_of", lambda index, command: FACTS | {"command": command})
    monkeypatch.setattr(contenders, "PEERS", contenders.PEERS[:1])
    monkeypatch.setitem(suites.SUITES, "anchors", lambda: (row(), row("backward", causal=True)))
    monkeypatch.setitem(suites.SUITES, "paper", lambda: (row("backward", with_forward=True),))


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--suite", "anchor"), 2, "suite 'anchor' is not one of anchors, paper, fp8"),
        (("--head-dim", "96"), 2, "leaves no row of suite anchors"),
        (("--op", "decode"), 2, "'decode' is not one of 'forward', 'backward', 'all'"),
        (("--counters",), 2, "give --suite paper"),
        ((), 3, "a GPU is required"),
    ],
)
def test_what_cannot_be_benched_says_why(
    cli: Cli, module: Path, arguments: tuple[str, ...], code: int, said: str
) -> None:
    done = cli("bench", module, *arguments)
    assert done.code == code
    assert said in done.err


@pytest.mark.usefixtures("gpu")
def test_anchors_are_written_with_both_passes(cli: Cli, module: Path, tmp_path: Path) -> None:
    done = cli("bench", module, "--rounds", 1, "--out", tmp_path / "results")
    assert done.code == 0, done.err
    assert "backward-fp32-d64-causal" in done.out
    document = json.loads((tmp_path / "results" / "anchors.json").read_text())
    assert [each["pass"] for each in document["rows"]] == ["forward", "backward"]
    assert all(timed["rounds"] for each in document["rows"] for timed in each["timed"])
    assert document["facts"]["command"] == "flashgen bench module.py --suite anchors --rounds 1"
    assert "| backward | 64 | 1 | 2/2 | 32 | causal |" in (tmp_path / "results" / "anchors.md").read_text()


@pytest.mark.usefixtures("gpu")
def test_one_op_of_one_head_dim(cli: Cli, module: Path) -> None:
    done = cli("bench", module, "--op", "backward", "--head-dim", 64, "--no-peers", "--json")
    assert done.code == 0, done.err
    (result,) = done.document["rows"]
    assert result["pass"] == "backward"
    assert list(result["median_us"]) == ["flashgen"]
    said = "flashgen bench module.py --suite anchors --rounds 5 --op backward --head-dim 64 --no-peers"
    assert done.document["facts"]["command"] == said


@pytest.mark.usefixtures("gpu")
def test_the_paper_with_counters(cli: Cli, module: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def count(path: Path, suite_name: str, of: Any, names: list[str], device: str) -> tuple[Counted, ...]:
        assert (path, suite_name, of, device) == (module, "paper", row("backward", with_forward=True), "cuda:0")
        refused = [Counted(contender=name, missing="ERR_NVGPUCTRPERM") for name in names[1:]]
        return (Counted(contender=names[0], bytes_read=3 * 10**9, kernels=2), *refused)

    monkeypatch.setattr("flashgen.bench.counters.count", count)
    done = cli("bench", module, "--suite", "paper", "--counters", "--out", tmp_path)
    assert done.code == 0, done.err
    assert "note: flashgen: 3 GB, 2 kernels" in done.err
    assert "FlashAttention (the paper, A100)" in done.out
    text = (tmp_path / "paper.md").read_text()
    assert "| flashgen | 0.1 |" in text
    assert "- standard: ERR_NVGPUCTRPERM" in text
    (result,) = json.loads((tmp_path / "paper.json").read_text())["rows"]
    assert [each["contender"] for each in result["counted"]] == ["flashgen", "standard", "FA2 (SDPA)"]
