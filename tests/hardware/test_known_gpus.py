from __future__ import annotations

from dataclasses import fields
from itertools import combinations

import pytest

from flashgen.hardware.known import KNOWN, KnownGpu
from flashgen.hardware.lookup import slugify

EVERY = pytest.mark.parametrize("gpu", KNOWN.values(), ids=KNOWN)

# Matrix FLOPs a clock and SM that the architecture can issue with fp32 accumulation: the dense rates must agree.
FLOPS_PER_SM_CLOCK = {
    "nvidia-t4": 1024,
    "nvidia-a100": 2048,
    "nvidia-a10": 1024,
    "nvidia-geforce-rtx-3090": 512,
    "nvidia-l4": 1024,
    "nvidia-l40s": 1024,
    "nvidia-geforce-rtx-4090": 512,
    "nvidia-h100": 4096,
    "nvidia-h100-pcie": 4096,
    "nvidia-h200": 4096,
    "nvidia-b200": 8192,
    "nvidia-geforce-rtx-5090": 512,
    "amd-instinct-mi300x": 2048,
}


def names(gpu: KnownGpu) -> set[str]:
    return {slugify(name) for name in (gpu.slug, *gpu.aliases, *gpu.device_names)}


@EVERY
def test_every_figure_is_positive(gpu: KnownGpu) -> None:
    values = {field.name: getattr(gpu.target, field.name) for field in fields(gpu.target)}
    figures = [value for value in values.values() if isinstance(value, int | float) and not isinstance(value, bool)]
    assert len(figures) == 8
    assert all(value > 0 for value in figures), values


@EVERY
def test_every_figure_group_has_a_source_that_names_its_publication(gpu: KnownGpu) -> None:
    kinds = ("whitepaper", "datasheet", "data sheet", "Guide", "guide", "driver attributes", "product brief")
    for source in (gpu.limits.source, gpu.chip.source, gpu.speed.source):
        assert any(kind in source for kind in kinds), source


@EVERY
def test_dense_rate_agrees_with_the_architecture(gpu: KnownGpu) -> None:
    target = gpu.target
    issued = target.sm_count * target.clock_hz * FLOPS_PER_SM_CLOCK[gpu.slug]
    assert 0.90 * issued <= target.bf16_flops <= 1.02 * issued


@EVERY
def test_a_block_fits_its_sm(gpu: KnownGpu) -> None:
    reserved = 0 if gpu.arch in ("sm_75", "gfx942") else 1024
    assert gpu.target.smem_per_block + reserved == gpu.target.smem_per_sm


def test_names_are_unique() -> None:
    for one, other in combinations(KNOWN.values(), 2):
        assert not names(one) & names(other), (one.slug, other.slug)


@EVERY
def test_slug_is_its_own_slug_and_has_a_short_alias(gpu: KnownGpu) -> None:
    assert slugify(gpu.slug) == gpu.slug
    assert any(len(alias) < len(gpu.slug) for alias in gpu.aliases)


def test_only_turing_lacks_bf16() -> None:
    assert [slug for slug, gpu in KNOWN.items() if not gpu.target.has_bf16] == ["nvidia-t4"]


@pytest.mark.parametrize(
    ("slug", "block_bytes"),
    [("nvidia-t4", 65536), ("nvidia-a100", 166912), ("nvidia-a10", 101376), ("nvidia-l4", 101376),
     ("nvidia-h200", 232448), ("nvidia-b200", 232448), ("nvidia-geforce-rtx-5090", 101376),
     ("amd-instinct-mi300x", 65536)],
)  # fmt: skip
def test_shared_memory_limits_are_those_of_the_driver(slug: str, block_bytes: int) -> None:
    assert KNOWN[slug].target.smem_per_block == block_bytes
