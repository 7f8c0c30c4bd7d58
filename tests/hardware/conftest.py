"""A torch that reports the GPUs a test asks for, and a PATH that holds no nvidia-smi but the test's own."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

H200: dict[str, Any] = {
    "name": "NVIDIA H200",
    "major": 9,
    "minor": 0,
    "multi_processor_count": 132,
    "shared_memory_per_block": 49152,
    "shared_memory_per_block_optin": 232448,
    "shared_memory_per_multiprocessor": 233472,
    "regs_per_multiprocessor": 65536,
    "L2_cache_size": 62914560,
    "total_memory": 150_000_000_000,
    "clock_rate": 1_980_000,
    "memory_clock_rate": 3_201_000,
    "memory_bus_width": 6016,
    "uuid": "01234567-89ab-cdef-0123-456789abcdef",
}
RTX_4060: dict[str, Any] = H200 | {
    "name": "NVIDIA GeForce RTX 4060",
    "major": 8,
    "minor": 9,
    "multi_processor_count": 24,
    "shared_memory_per_block_optin": 101376,
    "shared_memory_per_multiprocessor": 102400,
    "L2_cache_size": 25165824,
    "clock_rate": 2_460_000,
    "memory_clock_rate": 8_501_000,
    "memory_bus_width": 128,
}
MI300X: dict[str, Any] = {
    "name": "AMD Instinct MI300X",
    "major": 9,
    "minor": 4,
    "gcnArchName": "gfx942:sramecc+:xnack-",
    "multi_processor_count": 304,
    "shared_memory_per_block": 65536,
    "shared_memory_per_multiprocessor": 19922944,  # 304 times 64 KiB: what some ROCm releases report
    "regs_per_multiprocessor": 131072,
    "L2_cache_size": 4194304,
    "clock_rate": 2_100_000,
    "memory_clock_rate": 1_300_000,  # HBM3 moves four bits a clock of this one
    "memory_bus_width": 8192,
}

FakeTorch = Callable[..., None]


@pytest.fixture
def h200() -> dict[str, Any]:
    """torch's properties of an NVIDIA H200, on the CUDA build."""
    return dict(H200)


@pytest.fixture
def rtx_4060() -> dict[str, Any]:
    """torch's properties of a GPU that is not in the table."""
    return dict(RTX_4060)


@pytest.fixture
def mi300x() -> dict[str, Any]:
    """torch's properties of an AMD Instinct MI300X, on the ROCm build."""
    return dict(MI300X)


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No nvidia-smi and none of the variables that change what is detected."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    for name in ("TRITON_INTERPRET", "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def fake_torch(monkeypatch: pytest.MonkeyPatch) -> FakeTorch:
    """Puts a torch of the given build into sys.modules: its devices' properties, or the error of its init."""

    def install(
        *devices: dict[str, Any], cuda: str | None = "13.0", hip: str | None = None, error: Exception | None = None
    ) -> None:
        def init() -> None:
            if error is not None:
                raise error

        module = SimpleNamespace(
            __version__="2.11.0",
            version=SimpleNamespace(cuda=cuda, hip=hip),
            cuda=SimpleNamespace(
                init=init,
                device_count=lambda: len(devices),
                get_device_properties=lambda index: SimpleNamespace(**devices[index]),
            ),
        )
        monkeypatch.setitem(sys.modules, "torch", module)

    return install


@pytest.fixture
def fake_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts a shell script on PATH as nvidia-smi; the script is given the questions as its arguments."""

    def install(script: str) -> None:
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        program = folder / "nvidia-smi"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)

    return install
