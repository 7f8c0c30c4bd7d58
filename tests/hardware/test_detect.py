from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from flashgen.hardware.detect import detect_gpus, detection_failure
from flashgen.hardware.known import KNOWN

Device = dict[str, Any]
FakeTorch = Callable[..., None]


def test_a_known_gpu_is_detected_as_the_table_has_it(fake_torch: FakeTorch, h200: Device) -> None:
    fake_torch(h200)
    (gpu,) = detect_gpus()
    assert gpu.known == "nvidia-h200"
    assert gpu.target == KNOWN["nvidia-h200"].target
    assert gpu.uuid == h200["uuid"]
    assert gpu.estimated == ()
    assert detection_failure() == ""


def test_the_limits_of_the_device_win_over_the_table(fake_torch: FakeTorch, h200: Device) -> None:
    smaller = h200 | {"multi_processor_count": 66, "shared_memory_per_block_optin": 101376, "L2_cache_size": 31457280}
    fake_torch(smaller)
    (gpu,) = detect_gpus()
    table = KNOWN["nvidia-h200"].target
    assert gpu.target == replace(
        table, sm_count=66, smem_per_block=101376, l2_bytes=31457280, bf16_flops=table.bf16_flops / 2
    )


def test_an_unknown_gpu_gets_a_slug_and_marked_estimates(fake_torch: FakeTorch, rtx_4060: Device) -> None:
    fake_torch(rtx_4060)
    (gpu,) = detect_gpus()
    assert gpu.known is None
    assert gpu.target.slug == "nvidia-geforce-rtx-4060"
    assert (gpu.target.arch, gpu.target.smem_per_block, gpu.target.has_bf16) == ("sm_89", 101376, True)
    assert gpu.target.hbm_bytes_per_s == pytest.approx(272e9, rel=0.001)  # as NVIDIA advertises it
    assert gpu.estimated == ("bf16_flops",)


def test_a_torch_that_reports_no_clocks_leaves_the_table(fake_torch: FakeTorch, h200: Device) -> None:
    clocks = ("clock_rate", "memory_clock_rate", "memory_bus_width", "uuid")
    fake_torch({name: value for name, value in h200.items() if name not in clocks})
    (gpu,) = detect_gpus()
    assert gpu.target == KNOWN["nvidia-h200"].target
    assert gpu.uuid is None


def test_turing_has_no_bf16(fake_torch: FakeTorch, h200: Device) -> None:
    fake_torch(h200 | {"name": "Tesla T4", "major": 7, "minor": 5})
    assert not detect_gpus()[0].target.has_bf16


def test_hip(fake_torch: FakeTorch, mi300x: Device) -> None:
    fake_torch(mi300x, cuda=None, hip="7.0.51831")
    (gpu,) = detect_gpus()
    assert gpu.known == "amd-instinct-mi300x"
    assert gpu.target == KNOWN["amd-instinct-mi300x"].target


def test_a_slice_is_a_target_of_its_own(fake_torch: FakeTorch, h200: Device) -> None:
    fake_torch(h200 | {"name": "NVIDIA H200 MIG 1g.18gb", "multi_processor_count": 16, "L2_cache_size": 7864320})
    (gpu,) = detect_gpus()
    assert gpu.target.slug == "nvidia-h200-mig-1g-18gb"
    assert gpu.known == "nvidia-h200"
    assert gpu.target.hbm_bytes_per_s == pytest.approx(4.8e12 / 8)


def test_devices_keep_their_order(fake_torch: FakeTorch, h200: Device, rtx_4060: Device) -> None:
    fake_torch(rtx_4060, h200)
    assert [(gpu.index, gpu.name) for gpu in detect_gpus()] == [(0, rtx_4060["name"]), (1, "NVIDIA H200")]


def test_a_cpu_build_detects_nothing_and_says_so(fake_torch: FakeTorch) -> None:
    fake_torch(cuda=None)
    assert detect_gpus() == ()
    assert detection_failure() == "torch 2.11.0 is a CPU build; no NVIDIA driver answers through nvidia-smi"


def test_a_missing_driver_is_torchs_first_line_and_the_drivers_state(
    fake_torch: FakeTorch, fake_nvidia_smi: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_torch(error=RuntimeError("No CUDA GPUs are available\nmore text"))
    fake_nvidia_smi("echo 580.1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    assert detect_gpus() == ()
    assert detection_failure() == (
        "torch 2.11.0 (CUDA 13.0) finds no usable GPU (No CUDA GPUs are available), CUDA_VISIBLE_DEVICES='7' is set; "
        "NVIDIA driver 580.1 answers"
    )


def test_no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert detect_gpus() == ()
    assert detection_failure().startswith("torch cannot be imported")


def test_no_devices(fake_torch: FakeTorch) -> None:
    fake_torch(cuda=None, hip="7.0")
    assert detect_gpus() == ()
    assert "torch 2.11.0 (ROCm 7.0) counts 0 devices" in detection_failure()
    assert "/dev/kfd" in detection_failure()
