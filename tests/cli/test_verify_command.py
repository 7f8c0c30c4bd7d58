"""`flashgen verify`: the table, and that nothing but a proof of every rule exits 0."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flashgen.outcome import Proof, Reason, Rejected
from tests.cli.conftest import Cli
from tests.tune.replay import PROOF

WRONG = Rejected(reason=Reason.INEXACT, detail="3 of 40 probes failed, worst 'ragged'")


@pytest.fixture
def proven(monkeypatch: pytest.MonkeyPatch) -> list[Proof | Rejected]:
    """What becomes of the rules that are proven: of a module's in order, of configs always the first."""
    outcomes: list[Proof | Rejected] = [PROOF]

    def of_module(path: Path, full: bool, seed: int) -> Iterator[tuple[str, Proof | Rejected]]:
        yield from ((f"_attn_fwd_causal, head_dim {i}, tile 64x32, fp16", each) for i, each in enumerate(outcomes))

    def of_entries(files: Any, full: bool, seed: int) -> Iterator[tuple[str, str, Proof | Rejected]]:
        yield from ((f"{file.gpu} {entry.label}", "fp16", outcomes[0]) for file in files for entry in file.entries)

    monkeypatch.setattr("flashgen.verify.worker.prove_module_rules", of_module)
    monkeypatch.setattr("flashgen.verify.entries.prove_entries", of_entries)
    return outcomes


@pytest.fixture
def module(tmp_path: Path) -> Path:
    path = tmp_path / "attention.py"
    path.touch()
    return path


def test_all_exact(cli: Cli, proven: list[Proof | Rejected], module: Path) -> None:
    done = cli("verify", module)
    assert done.code == 0
    assert "all 1 are exact" in done.out
    row = next(line for line in done.out.splitlines() if "_attn_fwd_causal" in line)
    assert row.split()[-5:] == ["fp16", "gpu", "3", "0.500", "exact"]


def test_one_inexact_exits_5(cli: Cli, proven: list[Proof | Rejected], module: Path) -> None:
    proven.append(WRONG)
    done = cli("verify", module)
    assert done.code == 5
    assert "INEXACT" in done.out
    assert WRONG.detail in done.out
    assert "1 of 2 are NOT shown to be exact" in done.out


def test_a_proof_that_did_not_end_is_none(cli: Cli, proven: list[Proof | Rejected], module: Path) -> None:
    proven[:] = [Rejected(reason=Reason.TIMEOUT, detail="no answer in 900 s")]
    assert cli("verify", module).code == 5


def test_nothing_proven_is_not_exact(cli: Cli, proven: list[Proof | Rejected], module: Path) -> None:
    proven.clear()
    assert cli("verify", module).code == 5


def test_json(cli: Cli, proven: list[Proof | Rejected], module: Path) -> None:
    proven.append(WRONG)
    document = cli("verify", module, "--json").document
    assert document["exact"] is False
    assert [rule["exact"] for rule in document["rules"]] == [True, False]
    assert document["rules"][1]["rejected"]["reason"] == "inexact"


def test_configs_of_all_gpus_or_of_one(cli: Cli, proven: list[Proof | Rejected], configs: Path) -> None:
    assert "all 32 are exact" in cli("verify", "--configs", configs).out
    assert "all 16 are exact" in cli("verify", "--configs", configs, "--gpu", "portable").out
    assert cli("verify", "--configs", configs, "--gpu", "b200").code == 2


@pytest.mark.parametrize("arguments", [[], ["MODULE", "--configs", "."], ["MODULE", "--gpu", "h200"], ["missing.py"]])
def test_usage(arguments: list[str], cli: Cli, module: Path) -> None:
    assert cli("verify", *(str(module) if each == "MODULE" else each for each in arguments)).code == 2
