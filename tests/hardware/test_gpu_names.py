from __future__ import annotations

import pytest

from flashgen.errors import UnknownGpu
from flashgen.hardware.lookup import device_slug, find_gpu, known_by_device_name, mig_profile, slugify


@pytest.mark.parametrize("name", ["nvidia-h200", "h200", "H200", "NVIDIA H200", "nvidia_h200", " h200 "])
def test_a_gpu_is_found_by_slug_alias_and_device_name(name: str) -> None:
    assert find_gpu(name).slug == "nvidia-h200"


@pytest.mark.parametrize(
    ("alias", "slug"),
    [("rtx-4090", "nvidia-geforce-rtx-4090"), ("h100-pcie", "nvidia-h100-pcie"), ("mi300x", "amd-instinct-mi300x")],
)
def test_aliases(alias: str, slug: str) -> None:
    assert find_gpu(alias).slug == slug


def test_an_unknown_name_offers_the_closest_and_the_command_that_lists_all() -> None:
    with pytest.raises(UnknownGpu) as caught:
        find_gpu("rtx-4080")
    text = str(caught.value)
    assert "'rtx-4080'" in text
    assert "rtx-4090" in text
    assert "`flashgen gpus`" in text
    assert "\n" not in text
    assert caught.value.exit_code == 2


def test_closest_names_each_gpu_once() -> None:
    with pytest.raises(UnknownGpu, match=r"closest: h200[,)]") as caught:
        find_gpu("h200x")
    offered = str(caught.value).split("closest: ")[1].split(")")[0].split(", ")
    assert len({find_gpu(name).slug for name in offered}) == len(offered) <= 3


def test_a_name_like_no_other_offers_nothing() -> None:
    with pytest.raises(UnknownGpu) as caught:
        find_gpu("@@@@")
    assert "closest" not in str(caught.value)


@pytest.mark.parametrize(
    ("device", "slug"),
    [
        ("NVIDIA H200", "nvidia-h200"),
        ("NVIDIA H100 80GB HBM3", "nvidia-h100"),
        ("NVIDIA H100 PCIe", "nvidia-h100-pcie"),
        ("NVIDIA A100-SXM4-80GB", "nvidia-a100"),
        ("A100-SXM4-40GB", "nvidia-a100"),
        ("Tesla T4", "nvidia-t4"),
        ("NVIDIA GeForce RTX 4090", "nvidia-geforce-rtx-4090"),
        ("AMD Instinct MI300X", "amd-instinct-mi300x"),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "nvidia-h100"),
    ],
)
def test_device_names_of_drivers_match(device: str, slug: str) -> None:
    known = known_by_device_name(device)
    assert known is not None
    assert known.slug == slug


@pytest.mark.parametrize("device", ["NVIDIA H200 NVL", "NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA H100 NVL", ""])
def test_other_variants_do_not_match(device: str) -> None:
    assert known_by_device_name(device) is None


@pytest.mark.parametrize(
    ("device", "arch", "slug"),
    [
        ("NVIDIA GeForce RTX 4060", "sm_89", "nvidia-geforce-rtx-4060"),
        ("Tesla V100-SXM2-16GB", "sm_70", "nvidia-tesla-v100-sxm2-16gb"),
        ("AMD Radeon(TM) RX 7900 XTX", "gfx1100", "amd-radeon-rx-7900-xtx"),
        ("", "gfx90a", "amd-gfx90a"),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "sm_90", "nvidia-h100-mig-1g-10gb"),
        ("NVIDIA H200", "sm_90", "nvidia-h200"),
    ],
)
def test_slugs_of_devices(device: str, arch: str, slug: str) -> None:
    assert device_slug(device, arch) == slug


def test_mig_profile_is_read_from_the_name() -> None:
    assert mig_profile("NVIDIA A100-SXM4-40GB MIG 3g.20gb") == "3g.20gb"
    assert mig_profile("NVIDIA A100-SXM4-40GB") is None


def test_slugify_leaves_no_character_that_a_path_minds() -> None:
    assert slugify("  NVIDIA  RTX(TM) 6000 Ada/Generation ") == "nvidia-rtx-6000-ada-generation"
