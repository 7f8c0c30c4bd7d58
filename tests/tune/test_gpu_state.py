"""What is said about a GPU that was not at its best."""

from __future__ import annotations

import os

import pytest

from flashgen.hardware.nvidia_smi import GpuClocks, GpuProcess
from flashgen.tune import gpu_state
from flashgen.tune.gpu_state import disturbances

UUID = "5e7b"
OWN = GpuProcess(gpu_uuid=f"GPU-{UUID}", pid=str(os.getpid()), name="python")
OTHER = GpuProcess(gpu_uuid=f"GPU-{UUID}", pid="1", name="trainer")
ELSEWHERE = GpuProcess(gpu_uuid="GPU-ffff", pid="2", name="other")


def clocks(index: int, *slowdowns: str) -> GpuClocks:
    return GpuClocks(index=str(index), name=f"GPU {index}", sm_mhz=1200, max_sm_mhz=1980, slowdowns=slowdowns)


def arrange(monkeypatch: pytest.MonkeyPatch, processes: list[GpuProcess] | None, found: list[GpuClocks] | None) -> None:
    monkeypatch.setattr(gpu_state, "compute_processes", lambda: processes)
    monkeypatch.setattr(gpu_state, "gpu_clocks", lambda: found)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_a_gpu_of_ones_own_at_full_speed_is_no_news(monkeypatch: pytest.MonkeyPatch) -> None:
    arrange(monkeypatch, [OWN, ELSEWHERE], [clocks(0)])
    assert disturbances(0, UUID) == ()


def test_the_process_that_began_this_one_is_no_company(monkeypatch: pytest.MonkeyPatch) -> None:
    parent = GpuProcess(gpu_uuid=OWN.gpu_uuid, pid=str(os.getppid()), name="python")
    arrange(monkeypatch, [OWN, parent], [clocks(0)])
    assert disturbances(0, UUID) == ()


def test_company_and_slowdowns_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    arrange(monkeypatch, [OWN, OTHER], [clocks(0, "power cap")])
    shared, slowed = disturbances(0, UUID)
    assert "2 compute processes" in shared
    assert "trainer" in shared
    assert "1200 of 1980 MHz" in slowed
    assert "power cap" in slowed


def test_only_the_device_in_use_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    arrange(monkeypatch, [], [clocks(0, "power cap"), clocks(1), clocks(2, "hardware slowdown")])
    assert disturbances(1, UUID) == ()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,1")
    assert "hardware slowdown" in disturbances(0, UUID)[0]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-5e7b")
    assert disturbances(0, UUID) == ()  # which row it is cannot be told


def test_without_nvidia_smi_nothing_is_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    arrange(monkeypatch, None, None)
    assert disturbances(0, None) == ()
