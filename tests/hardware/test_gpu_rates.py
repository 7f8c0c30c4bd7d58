from __future__ import annotations

import pytest

from flashgen.hardware.known import KNOWN
from flashgen.hardware.rates import Reported, estimated_rates, known_rates

A100 = KNOWN["nvidia-a100"]


def a100(**changes: object) -> Reported:
    facts: dict[str, object] = {"arch": "sm_80", "sm_count": 108, "l2_bytes": 40 * 1024**2}
    return Reported(**(facts | changes))  # type: ignore[arg-type]


def test_a_whole_device_has_the_rates_of_the_table() -> None:
    rates = known_rates(A100, a100(clock_hz=1.41e9, hbm_bytes_per_s=2.039e12))
    assert rates.bf16_flops == A100.target.bf16_flops
    assert rates.hbm_bytes_per_s == A100.target.hbm_bytes_per_s
    assert rates.estimated == ()


def test_an_overclocked_device_is_not_above_the_table() -> None:
    rates = known_rates(A100, a100(clock_hz=2e9, hbm_bytes_per_s=9e12))
    assert (rates.clock_hz, rates.hbm_bytes_per_s) == (1.41e9, 2.039e12)


def test_fewer_sms_and_a_lower_clock_scale_the_flops() -> None:
    rates = known_rates(A100, a100(sm_count=54, clock_hz=0.705e9))
    assert rates.bf16_flops == pytest.approx(A100.target.bf16_flops / 4)


def test_slower_memory_wins_over_the_table() -> None:
    assert known_rates(A100, a100(hbm_bytes_per_s=1.555e12)).hbm_bytes_per_s == 1.555e12


def test_a_slice_has_its_share_of_the_memory_rate() -> None:
    rates = known_rates(A100, a100(sm_count=14, l2_bytes=5 * 1024**2, is_slice=True))
    assert rates.hbm_bytes_per_s == pytest.approx(2.039e12 / 8)
    assert rates.bf16_flops == pytest.approx(312e12 * 14 / 108)


def test_an_unknown_gpu_is_estimated_from_the_slowest_of_its_architecture() -> None:
    device = Reported(arch="sm_89", sm_count=24, l2_bytes=2**24, clock_hz=2e9, hbm_bytes_per_s=2.72e11)
    rates = estimated_rates(device)
    assert rates.bf16_flops == pytest.approx(512 * 24 * 2e9, rel=0.01)  # a GeForce's rate, not an L4's
    assert rates.hbm_bytes_per_s == 2.72e11
    assert rates.estimated == ("bf16_flops",)


def test_what_the_driver_hides_is_estimated_and_named() -> None:
    rates = estimated_rates(Reported(arch="sm_103", sm_count=148, l2_bytes=2**26))
    b200 = KNOWN["nvidia-b200"].target
    assert rates.clock_hz == b200.clock_hz
    assert rates.hbm_bytes_per_s == pytest.approx(b200.hbm_bytes_per_s)
    assert rates.estimated == ("bf16_flops", "hbm_bytes_per_s", "clock_hz")


@pytest.mark.parametrize("arch", ["sm_70", "gfx1100"])
def test_an_architecture_without_kin_takes_the_slowest_known(arch: str) -> None:
    rates = estimated_rates(Reported(arch=arch, sm_count=80, l2_bytes=2**22))
    assert rates.bf16_flops / (80 * rates.clock_hz) <= 513
    assert rates.hbm_bytes_per_s / 80 == min(gpu.target.hbm_bytes_per_s / gpu.target.sm_count for gpu in KNOWN.values())
