"""The command line, run in this process: its exit code, what it wrote to stdout, and what to stderr."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from flashgen.cli.main import run
from flashgen.hardware import resolve as resolving
from tests.tuned import usual_configs


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """stdout, which is one JSON document and nothing else."""
        return json.loads(self.out)


Cli = Callable[..., Ran]


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Runs `flashgen` with the given arguments, on a machine without a GPU."""
    monkeypatch.setattr(resolving, "detect_gpus", lambda: ())
    monkeypatch.setattr(resolving, "detection_failure", lambda: "torch is a CPU build")

    def invoke(*arguments: object) -> Ran:
        capsys.readouterr()
        code = run([str(each) for each in arguments])
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    return invoke


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory in the place of the configs that flashgen ships."""
    directory = tmp_path / "shipped"
    directory.mkdir()
    monkeypatch.setattr("flashgen.assets.tuned_configs_dir", lambda: directory)
    monkeypatch.setattr("flashgen.codegen.sources.tuned_configs_dir", lambda: directory)
    return directory


@pytest.fixture
def configs(tmp_path: Path, shipped: Path) -> Path:
    """Tuned configs of an H200 and portable ones, for head dims 64 and 128."""
    return usual_configs(tmp_path / "configs")
