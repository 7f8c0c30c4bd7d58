"""`flashgen gpus` and `flashgen doctor`."""

from __future__ import annotations

import pytest

from flashgen.hardware.checks import Check
from flashgen.hardware.known import KNOWN
from tests.cli.conftest import Cli


@pytest.fixture(autouse=True)
def nothing_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flashgen.hardware.detect.detect_gpus", lambda: ())
    monkeypatch.setattr("flashgen.hardware.detect.detection_failure", lambda: "torch is a CPU build")


def test_every_known_gpu_and_its_figures(cli: Cli) -> None:
    done = cli("gpus")
    assert done.code == 0
    for slug in KNOWN:
        assert slug in done.out
    h200 = next(line for line in done.out.splitlines() if "nvidia-h200" in line)
    for figure in ("sm_90", "132", "227 KiB", "60 MiB", "4.8 TB/s", "989.4 TFLOP/s", "1980 MHz"):
        assert figure in h200
    assert "In this machine: none. torch is a CPU build" in done.out


def test_sources(cli: Cli) -> None:
    source = KNOWN["nvidia-h200"].speed.source
    assert source not in cli("gpus").out
    assert source in cli("gpus", "--sources").out
    assert source in cli("gpus", "--sources", "--json").out


def test_gpus_as_json(cli: Cli) -> None:
    document = cli("gpus", "--json").document
    assert {gpu["slug"]: gpu["smem_per_block"] for gpu in document["known"]}["nvidia-h200"] == 232448
    assert (document["detected"], document["detection_failure"]) == ([], "torch is a CPU build")


@pytest.mark.parametrize(("status", "code"), [("ok", 0), ("warn", 0), ("fail", 1)])
def test_doctor(status: str, code: int, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    check = Check(name="torch", status=status, detail="torch 2.13.0", next_step="install it")  # type: ignore[arg-type]
    monkeypatch.setattr("flashgen.hardware.doctor.doctor", lambda cache_dir: (check,))
    done = cli("doctor")
    assert done.code == code
    assert "torch: install it" in done.out
    assert f"1 {status}" in done.out
    document = cli("doctor", "--json").document
    assert (document["checks"][0]["detail"], document[status]) == ("torch 2.13.0", 1)
