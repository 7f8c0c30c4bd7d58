from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flashgen.hardware import machine_checks, toolchain_checks
from flashgen.hardware.checks import Finding, Supported, ok, release, run_check
from flashgen.hardware.doctor import doctor

Device = dict[str, Any]
FakeTorch = Callable[..., None]

FakeSmi = Callable[[str], None]


def test_every_check_reports_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", os.defpath)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    checks = {check.name: check for check in doctor(tmp_path / "flashgen")}
    assert len(checks) == 13
    for check in checks.values():
        assert check.detail
        assert (check.status == "ok") == (check.next_step == ""), check
        assert "the check itself failed" not in check.detail, check
    assert checks["cross-compile"].status == "ok", checks["cross-compile"]
    assert not list(tmp_path.iterdir())  # it leaves nothing behind


def test_a_check_that_crashes_is_a_failure_with_its_text() -> None:
    def crash() -> Finding:
        raise OSError("disk on fire")

    check = run_check("disk", crash)
    assert (check.name, check.status) == ("disk", "fail")
    assert "OSError: disk on fire" in check.detail
    assert check.next_step


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    check = run_check("triton", toolchain_checks.triton)
    assert check.status == "fail"
    assert "triton cannot be imported" in check.detail
    assert check.next_step == "install triton into this environment"


@pytest.mark.parametrize(
    ("version", "status"),
    [("2.10.1", "fail"), ("2.11.0+cu130", "ok"), ("2.14.2", "ok"), ("2.15.0.dev2027", "warn"), ("3.0", "warn")],
)
def test_supported_versions(version: str, status: str) -> None:
    finding = Supported(package="torch", oldest=(2, 11), newest=(2, 14)).judge(version, f"torch {version}")
    assert finding.status == status
    assert version in finding.detail
    assert ("2.11 to 2.14" in finding.next_step) == (status != "ok")


def test_a_version_without_numbers_is_an_error() -> None:
    with pytest.raises(ValueError, match="'main'"):
        release("main")


def test_old_python(monkeypatch: pytest.MonkeyPatch) -> None:
    version_info = namedtuple("version_info", "major minor micro")
    monkeypatch.setattr(sys, "version_info", version_info(3, 10, 4))
    assert toolchain_checks.python().status == "fail"


def test_a_cpu_torch_on_a_gpu_machine_warns(fake_torch: FakeTorch, fake_nvidia_smi: FakeSmi) -> None:
    fake_torch(cuda=None)
    assert toolchain_checks.torch() == ok("torch 2.11.0 (CPU build)")
    fake_nvidia_smi("echo 580.1")
    assert toolchain_checks.torch().status == "warn"


def set_versions(monkeypatch: pytest.MonkeyPatch, *, triton: str, numpy: str = "2.3.5", requires: Any = None) -> None:
    monkeypatch.setitem(sys.modules, "triton", SimpleNamespace(__version__=triton))
    monkeypatch.setattr(importlib.metadata, "version", lambda name: {"numpy": numpy}[name])
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: requires)


@pytest.mark.parametrize(
    ("requires", "triton", "status"),
    [
        (['triton==3.6.0; platform_system == "Linux"'], "3.6.0", "ok"),
        (['triton==3.6.0; platform_system == "Linux"'], "3.7.0", "warn"),
        (["triton-rocm==3.6.0"], "3.9.0", "warn"),
        (["pytorch-triton (==3.6.0)"], "3.6.1", "ok"),
        (["sympy>=1.13.3"], "3.9.0", "ok"),
        (None, "3.9.0", "ok"),
    ],
)
def test_pairing(monkeypatch: pytest.MonkeyPatch, requires: Any, triton: str, status: str) -> None:
    set_versions(monkeypatch, triton=triton, requires=requires)
    assert toolchain_checks.pairing().status == status


@pytest.mark.parametrize(
    ("triton", "numpy", "status"),
    [("3.6.0", "2.4.0", "warn"), ("3.6.0", "2.3.9", "ok"), ("3.7.0", "2.4.0", "ok"), ("3.6.0", "3.0.0", "warn")],
)
def test_numpy_and_the_interpreter(monkeypatch: pytest.MonkeyPatch, triton: str, numpy: str, status: str) -> None:
    set_versions(monkeypatch, triton=triton, numpy=numpy)
    assert toolchain_checks.numpy().status == status


def test_missing_tools_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tmp_path / "backends" / "nvidia" / "bin"
    folder.mkdir(parents=True)
    (folder / "ptxas").touch(mode=0o755)
    spec = SimpleNamespace(origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: spec)
    finding = toolchain_checks.nvidia_tools()
    assert finding.status == "fail"
    assert finding.detail.startswith("cuobjdump missing")
    (folder / "cuobjdump").touch(mode=0o755)
    assert toolchain_checks.nvidia_tools().status == "ok"


def test_a_compiler_that_fails_or_hangs_is_a_failure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho 'Traceback' >&2\necho 'ptxas fatal: no' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(broken))
    assert toolchain_checks.cross_compile().detail.endswith("ptxas fatal: no")

    def hang(*arguments: object, **options: Any) -> None:
        raise subprocess.TimeoutExpired("python", options["timeout"])

    monkeypatch.setattr(subprocess, "run", hang)
    assert "more than 120 s" in toolchain_checks.cross_compile().detail


def test_gpus_are_listed_with_their_estimates(fake_torch: FakeTorch, h200: Device, rtx_4060: Device) -> None:
    fake_torch(h200, rtx_4060)
    finding = machine_checks.gpus()
    assert finding.status == "ok"
    assert "0: NVIDIA H200 (nvidia-h200, sm_90, 132 SMs, 232448 bytes" in finding.detail
    assert "estimated: bf16_flops" in finding.detail


def test_no_gpu_warns_with_the_reason(fake_torch: FakeTorch) -> None:
    fake_torch(cuda=None)
    finding = machine_checks.gpus()
    assert finding.status == "warn"
    assert "CPU build" in finding.detail


def test_throttling_warns(fake_nvidia_smi: FakeSmi) -> None:
    assert machine_checks.clocks().status == "ok"  # nothing to ask
    fake_nvidia_smi("echo '0, NVIDIA H200, 345, 1980, 0x1'")
    assert machine_checks.clocks() == ok("0: 345 of 1980 MHz")
    fake_nvidia_smi("echo '0, NVIDIA H200, 1200, 1980, 0x20'")
    finding = machine_checks.clocks()
    assert finding.status == "warn"
    assert "slowed by software thermal slowdown" in finding.detail
    fake_nvidia_smi("exit 1")
    assert machine_checks.clocks().status == "warn"


def test_other_processes_warn_and_this_one_does_not(fake_nvidia_smi: FakeSmi) -> None:
    assert machine_checks.processes().status == "ok"  # nothing to ask
    fake_nvidia_smi(f"echo 'GPU-1, {os.getpid()}, python'")
    assert machine_checks.processes().status == "ok"
    fake_nvidia_smi("echo 'GPU-1, 1, train'")
    finding = machine_checks.processes()
    assert finding.status == "warn"
    assert "train (pid 1)" in finding.detail


def test_caches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "not" / "yet"))
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr("shutil.disk_usage", lambda folder: usage(0, 0, 100 * 10**9))
    assert machine_checks.caches().status == "ok"
    monkeypatch.setattr("shutil.disk_usage", lambda folder: usage(0, 0, 10**9))
    assert machine_checks.caches().status == "warn"
    monkeypatch.setattr("os.access", lambda folder, mode: "mine" not in str(folder))
    (tmp_path / "mine").mkdir()
    finding = machine_checks.caches(tmp_path / "mine")
    assert finding.status == "fail"
    assert str(tmp_path / "mine") in finding.detail


def test_triton_cache_dir_follows_tritons_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    monkeypatch.setenv("TRITON_HOME", "/somewhere")
    assert machine_checks.triton_cache_dir() == Path("/somewhere/.triton/cache")
    monkeypatch.setenv("TRITON_CACHE_DIR", "/elsewhere")
    assert machine_checks.triton_cache_dir() == Path("/elsewhere")


def test_a_missing_c_compiler_stops_only_a_gpu(
    fake_torch: FakeTorch, monkeypatch: pytest.MonkeyPatch, h200: Device
) -> None:
    monkeypatch.delenv("CC", raising=False)
    fake_torch(cuda=None)
    assert machine_checks.c_compiler().status == "warn"
    fake_torch(h200)
    finding = machine_checks.c_compiler()
    assert finding.status == "fail"
    assert "C compiler" in finding.detail
    monkeypatch.setenv("CC", "/bin/sh -x")
    assert "C compiler" not in machine_checks.c_compiler().detail


@pytest.mark.parametrize(("value", "status"), [("1", "warn"), ("true", "warn"), ("0", "ok"), ("", "ok")])
def test_the_interpreter_warns(monkeypatch: pytest.MonkeyPatch, value: str, status: str) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", value)
    assert machine_checks.interpreter().status == status
