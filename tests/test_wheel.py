"""The wheel brings its templates and configs along and works away from the checkout; the checkout reads its own."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

import flashgen
from flashgen.assets import templates_dir, tuned_configs_dir
from tests.tuned import usual_configs

ROOT = Path(flashgen.__file__).parents[1]

# Runs the emitted module where no flashgen can be imported.
CALL = """
import sys
sys.modules["flashgen"] = None
import torch
import attention
q, k = torch.randn(1, 3, 2, 64).half(), torch.randn(1, 5, 1, 64).half()
out = attention.flash_attention(q, k, k, causal=True)
assert out.shape == q.shape and out.isfinite().all()
print(sorted(name for name in sys.modules if name.startswith("flashgen.")))
"""


def run(*command: object, cwd: Path, **environment: str) -> str:
    """What the command prints; fails with what it said if it fails."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(list(map(str, command)), cwd=cwd, env=inherited | environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", out, ROOT, cwd=out)
    (path,) = out.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin directory of an environment with the wheel, which sees this one's packages but none of its .pth files."""
    root = tmp_path_factory.mktemp("installed")
    run(sys.executable, "-m", "venv", "--without-pip", root / "venv", cwd=root)
    python = root / "venv" / "bin" / "python"
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=root).strip())
    (site / "packages-of-the-tests.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", wheel, cwd=root)
    return python.parent


@pytest.fixture(scope="module")
def configs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return usual_configs(tmp_path_factory.mktemp("configs"))


def test_every_template_and_config_is_in_the_wheel(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        inside = {name: archive.read(name) for name in archive.namelist()}
    for directory, name in ((templates_dir(), "_templates"), (tuned_configs_dir(), "_tuned_configs")):
        files = [path for path in directory.rglob("*") if path.is_file()]
        for path in files:
            assert inside[f"flashgen/{name}/{path.relative_to(directory).as_posix()}"] == path.read_bytes()
    assert "flashgen/py.typed" in inside
    assert not [name for name in inside if name.startswith(("tests", "templates", "tuned_configs"))]


def test_the_wheel_emits_what_the_checkout_emits(installed: Path, configs: Path, tmp_path: Path) -> None:
    command = ("emit", "--gpu", "h200", "--configs", configs, "--out")
    run(installed / "flashgen", *command, tmp_path / "attention.py", cwd=tmp_path)
    run(sys.executable, "-m", "flashgen.cli", *command, tmp_path / "from_checkout.py", cwd=ROOT)
    assert (tmp_path / "attention.py").read_bytes() == (tmp_path / "from_checkout.py").read_bytes()
    assert run(installed / "python", "-c", CALL, cwd=tmp_path, TRITON_INTERPRET="1").strip() == "[]"


def test_the_wheel_lists_the_configs_that_the_checkout_ships(installed: Path, tmp_path: Path) -> None:
    listed = run(installed / "flashgen", "configs", "list", cwd=tmp_path)
    assert "_tuned_configs" in listed or not list(tuned_configs_dir().glob("*/*.yaml"))
    for path in tuned_configs_dir().glob("*/*.yaml"):
        assert path.parent.name in listed


def test_each_reads_its_own_templates(installed: Path, tmp_path: Path) -> None:
    code = "from flashgen.assets import templates_dir; print(templates_dir())"
    of_wheel = Path(run(installed / "python", "-c", code, cwd=tmp_path).strip())
    assert of_wheel.is_relative_to(installed.parent)
    assert of_wheel.name == "_templates"
    of_checkout = Path(run(sys.executable, "-c", code, cwd=ROOT).strip())
    assert of_checkout == ROOT / "templates"
