"""The pattern that finds a device's rules: its own names, whole, and nobody else's."""

from __future__ import annotations

import re

import pytest

from flashgen.codegen.device_names import device_name, device_pattern, short_name
from flashgen.hardware.known import KNOWN
from flashgen.hardware.lookup import device_slug


def test_known_gpus_match_their_own_names_only() -> None:
    names = {name: slug for slug, gpu in KNOWN.items() for name in gpu.device_names}
    for slug in KNOWN:
        pattern = device_pattern(slug)
        assert [name for name in names if re.fullmatch(pattern, name)] == list(KNOWN[slug].device_names)


def test_known_names_are_written_as_they_are() -> None:
    assert device_pattern("nvidia-h200") == "NVIDIA H200"
    assert device_pattern("nvidia-h100") == "NVIDIA H100 80GB HBM3"


@pytest.mark.parametrize(
    ("name", "arch"),
    [
        ("NVIDIA GeForce RTX 4060", "sm_89"),
        ("Quadro RTX 8000", "sm_75"),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "sm_90"),
        ("NVIDIA RTX 6000 Ada Generation MIG 2g.24gb", "sm_89"),
        ("AMD Radeon RX 7900 XTX", "gfx1100"),
    ],
)
def test_other_devices_match_by_their_slug(name: str, arch: str) -> None:
    pattern = device_pattern(device_slug(name, arch))
    assert re.fullmatch(pattern, name)
    assert not re.fullmatch(pattern, f"{name} Ti")
    assert not re.fullmatch(pattern, name[:-1])


def test_a_slice_is_not_the_whole() -> None:
    whole, part = "NVIDIA H100 80GB HBM3", "NVIDIA H100 80GB HBM3 MIG 1g.10gb"
    assert not re.fullmatch(device_pattern("nvidia-h100"), part)
    assert not re.fullmatch(device_pattern("nvidia-h100-mig-1g-10gb"), whole)


def test_names_for_people() -> None:
    assert (device_name("nvidia-h200"), short_name("nvidia-h200")) == ("NVIDIA H200", "h200")
    assert (device_name("nvidia-x"), short_name("nvidia-x")) == ("nvidia-x", "nvidia-x")
