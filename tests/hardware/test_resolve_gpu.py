from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from flashgen.errors import NoUsableGpu, UnknownGpu
from flashgen.hardware.known import KNOWN
from flashgen.hardware.resolve import resolve

Device = dict[str, Any]
FakeTorch = Callable[..., None]


def test_auto_is_the_first_gpu(fake_torch: FakeTorch, h200: Device, rtx_4060: Device) -> None:
    fake_torch(h200, rtx_4060)
    found = resolve("auto", require_gpu=True)
    assert (found.target.slug, found.present, found.index, found.warning) == ("nvidia-h200", True, 0, None)


def test_auto_without_a_gpu_is_h100_predicted_with_one_line_of_warning(fake_torch: FakeTorch) -> None:
    fake_torch(cuda=None)
    found = resolve("auto", require_gpu=False)
    assert found.target == KNOWN["nvidia-h100"].target
    assert not found.present
    assert found.warning is not None
    assert "\n" not in found.warning
    assert found.warning.startswith("no usable GPU: torch 2.11.0 is a CPU build")
    assert found.warning.endswith("results for nvidia-h100 are predicted")


@pytest.mark.parametrize("name", ["auto", "a100"])
def test_a_required_gpu_that_is_missing_says_what_was_sought_and_found_and_what_next(
    fake_torch: FakeTorch, name: str
) -> None:
    fake_torch(error=RuntimeError("Found no NVIDIA driver on your system."))
    with pytest.raises(NoUsableGpu) as caught:
        resolve(name, require_gpu=True)
    text = str(caught.value)
    assert caught.value.exit_code == 3
    assert ("any GPU" if name == "auto" else "'a100'") in text
    assert "torch 2.11.0 (CUDA 13.0)" in text
    assert "Found no NVIDIA driver" in text
    assert "no NVIDIA driver answers" in text
    assert "flashgen doctor" in text


@pytest.mark.parametrize("name", ["h200", "nvidia-h200", "NVIDIA H200"])
def test_a_name_that_is_here_is_present_with_the_devices_own_limits(
    fake_torch: FakeTorch, name: str, h200: Device, rtx_4060: Device
) -> None:
    fake_torch(rtx_4060, h200 | {"L2_cache_size": 31457280})
    found = resolve(name, require_gpu=True)
    assert (found.present, found.index, found.target.l2_bytes) == (True, 1, 31457280)
    assert found.warning is None


def test_an_index_is_a_gpu_of_this_machine(fake_torch: FakeTorch, h200: Device, rtx_4060: Device) -> None:
    fake_torch(rtx_4060, h200)
    found = resolve("1", require_gpu=True)
    assert (found.target.slug, found.present, found.index) == ("nvidia-h200", True, 1)
    with pytest.raises(NoUsableGpu, match=r"no GPU has the index 2\n  found: 0: .*, 1: nvidia-h200"):
        resolve("2", require_gpu=False)


def test_a_name_that_is_not_here_is_predicted(fake_torch: FakeTorch, h200: Device) -> None:
    fake_torch(h200)
    found = resolve("a100", require_gpu=False)
    assert (found.target, found.present, found.index) == (KNOWN["nvidia-a100"].target, False, None)
    assert found.warning == (
        "nvidia-a100 is not in this machine, which has nvidia-h200: results for nvidia-a100 are predicted"
    )


def test_a_name_that_is_not_here_and_required_is_refused(fake_torch: FakeTorch, h200: Device) -> None:
    fake_torch(h200)
    with pytest.raises(NoUsableGpu, match="nvidia-a100 is not in this machine, which has nvidia-h200"):
        resolve("a100", require_gpu=True)


def test_a_slice_is_not_the_whole_gpu(fake_torch: FakeTorch, h200: Device) -> None:
    fake_torch(h200 | {"name": "NVIDIA H200 MIG 1g.18gb", "multi_processor_count": 16})
    assert not resolve("h200", require_gpu=False).present
    assert resolve("nvidia-h200-mig-1g-18gb", require_gpu=True).present


def test_a_gpu_outside_the_table_works_and_warns_of_its_estimates(fake_torch: FakeTorch, rtx_4060: Device) -> None:
    fake_torch(rtx_4060)
    for name in ("auto", "nvidia-geforce-rtx-4060"):
        found = resolve(name, require_gpu=True)
        assert (found.target.slug, found.present) == ("nvidia-geforce-rtx-4060", True)
        assert found.warning is not None
        assert "bf16_flops" in found.warning


def test_a_name_that_nobody_knows(fake_torch: FakeTorch, h200: Device) -> None:
    fake_torch(h200)
    with pytest.raises(UnknownGpu, match="h200"):
        resolve("h2000", require_gpu=False)


def test_under_the_interpreter_nothing_is_measured(
    fake_torch: FakeTorch, monkeypatch: pytest.MonkeyPatch, h200: Device
) -> None:
    fake_torch(h200)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    found = resolve("auto", require_gpu=False)
    assert (found.target.slug, found.present) == ("nvidia-h200", False)
    with pytest.raises(NoUsableGpu, match="TRITON_INTERPRET"):
        resolve("auto", require_gpu=True)
