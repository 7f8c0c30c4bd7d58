"""The GPUs that the portable rules are for: all known ones that a family writes for, as one pseudo-target."""

from __future__ import annotations

from dataclasses import replace

from flashgen.families.tl import TL
from flashgen.hardware.known import KNOWN
from flashgen.hardware.target import GpuTarget
from flashgen.spec import AttentionSpec

PORTABLE = "portable"  # the slug of the rules that fit any GPU

_PLAIN = AttentionSpec(dtype="fp16", head_dim=64, head_dim_v=64)  # what every GPU can do that can do anything


def is_supported(target: GpuTarget) -> bool:
    """Whether portable rules are for `target` too."""
    return TL.unsupported(_PLAIN, target) is None


SUPPORTED = tuple(gpu.target for gpu in KNOWN.values() if is_supported(gpu.target))
SHARED_BYTES = min(target.smem_per_block for target in SUPPORTED)


def portable_target() -> GpuTarget:
    """The NVIDIA GPU with least shared memory, cut to the least of all: rules that fit it fit all."""
    smallest = min((target for target in SUPPORTED if target.is_nvidia), key=lambda target: target.smem_per_block)
    return replace(smallest, slug=PORTABLE, smem_per_block=SHARED_BYTES)


def one_gpu_an_arch() -> tuple[GpuTarget, ...]:
    """The first known GPU of every architecture that the family supports, least shared memory first."""
    by_arch: dict[str, GpuTarget] = {}
    for target in SUPPORTED:
        by_arch.setdefault(target.arch, target)
    return tuple(sorted(by_arch.values(), key=lambda target: target.smem_per_block))
