from __future__ import annotations

from collections.abc import Callable

from flashgen.hardware import nvidia_smi
from flashgen.hardware.nvidia_smi import GpuClocks, GpuProcess

FakeSmi = Callable[[str], None]


def test_without_nvidia_smi_there_is_no_answer() -> None:
    assert not nvidia_smi.has_nvidia_smi()
    assert nvidia_smi.driver_version() is None
    assert nvidia_smi.gpu_clocks() is None
    assert nvidia_smi.compute_processes() is None


def test_clocks_and_slowdowns(fake_nvidia_smi: FakeSmi) -> None:
    fake_nvidia_smi(
        "echo '0, NVIDIA H200, 1980, 1980, 0x0000000000000001'; echo '1, NVIDIA H200, 900, [N/A], 0x0000000000000044'"
    )
    assert nvidia_smi.gpu_clocks() == [
        GpuClocks(index="0", name="NVIDIA H200", sm_mhz=1980, max_sm_mhz=1980, slowdowns=()),
        GpuClocks(
            index="1",
            name="NVIDIA H200",
            sm_mhz=900,
            max_sm_mhz=None,
            slowdowns=("power cap", "hardware thermal slowdown"),
        ),
    ]


def test_an_older_driver_is_asked_by_the_older_name(fake_nvidia_smi: FakeSmi) -> None:
    fake_nvidia_smi('case "$1" in *event_reasons*) exit 6;; esac; echo "0, Tesla T4, 300, 1590, 0x4"')
    clocks = nvidia_smi.gpu_clocks()
    assert clocks is not None
    assert clocks[0].slowdowns == ("power cap",)


def test_processes(fake_nvidia_smi: FakeSmi) -> None:
    fake_nvidia_smi("echo 'GPU-1, 4711, python, train.py'")
    assert nvidia_smi.compute_processes() == [GpuProcess(gpu_uuid="GPU-1", pid="4711", name="python, train.py")]


def test_a_failing_driver_is_no_answer(fake_nvidia_smi: FakeSmi) -> None:
    fake_nvidia_smi("echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18")
    assert nvidia_smi.driver_version() is None


def test_only_questions_are_asked(fake_nvidia_smi: FakeSmi) -> None:
    fake_nvidia_smi(
        'for each in "$@"; do case "$each" in --query-*|--format=*) ;; *) exit 9;; esac; done; echo 1,2,3,4,5'
    )
    assert nvidia_smi.driver_version() is not None
    assert nvidia_smi.gpu_clocks() is not None
    assert nvidia_smi.compute_processes() is not None
